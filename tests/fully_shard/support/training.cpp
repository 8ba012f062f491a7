// SPDX-License-Identifier: Apache-2.0
#include "tests/fully_shard/support/training.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

namespace hyper_parallel::testing_support {
namespace {

double num_valid(int step) { return batch_of(step, 0, kNumSamples).labels.ne(-100).sum().item<double>(); }

void set_use(TinyModel& model, const Case& run, int rank) { model.blocks[2].uses_shift = !(run.uneven_use && rank == 1); }

}  // namespace

int Case::num_ranks() const {
  int64_t product = 1;
  for (const int64_t size : mesh) product *= size;
  return static_cast<int>(product);
}

DeviceMesh mesh_of(World& world, const std::vector<int64_t>& shape) {
  return DeviceMesh(world.group(), shape,
                    shape.size() == 1 ? std::vector<std::string>{"fsdp"} : std::vector<std::string>{"replicate", "fsdp"});
}

void update(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& grads, std::vector<at::Tensor>& states, int step) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (states.size() < 2 * weights.size()) {
      states.push_back(at::zeros_like(weights[i]));
      states.push_back(at::zeros_like(weights[i]));
    }
    if (weights[i].numel() == 0) continue;
    const at::Tensor count = at::full({}, step + 1, at::kFloat);
    at::_fused_adamw_({weights[i]}, {grads[i]}, {states[2 * i]}, {states[2 * i + 1]}, {}, {count}, 0.05, 0.9, 0.95, 0.1, 1e-8, false,
                      false);
  }
}

std::vector<Record> plain(const Case& run) {
  TinyModel model(run.model);
  materialize(model, {.dtype = run.dtype, .seed = 7});
  const auto named = model.named_parameters();
  std::vector<at::Tensor> states;
  std::vector<Record> records;
  for (int step = 0; step < kNumSteps; ++step) {
    Record record{};
    const int64_t per_rank = kNumSamples / run.num_ranks();
    for (int rank = 0; rank < run.num_ranks(); ++rank) {
      set_use(model, run, rank);
      const Batch batch = batch_of(step, rank * per_rank, per_rank);
      const at::Tensor loss = sum_loss(model(batch.tokens), batch.labels) / num_valid(step);
      loss.backward();
      record.loss += loss.item<double>();
    }
    std::vector<at::Tensor> weights, grads;
    double squares = 0;
    for (const auto& [name, slot] : named) {
      if (!slot->trainable) continue;
      at::Tensor& grad = slot->tensor.mutable_grad();
      if (!grad.defined()) grad = at::zeros_like(slot->tensor);
      squares += grad.to(at::kDouble).square().sum().item<double>();
      record.grads[name] = grad.clone();
      weights.push_back(slot->tensor.detach());
      grads.push_back(grad);
    }
    record.norm = std::sqrt(squares);
    update(weights, grads, states, step);
    for (const auto& [name, slot] : named) {
      record.weights[name] = slot->tensor.detach().clone();
      slot->tensor.mutable_grad().reset();
    }
    records.push_back(std::move(record));
  }
  return records;
}

double backward_all(World& world, const Case& run, TinyModel& model, FullyShard& engine, int step) {
  const int64_t per_rank = kNumSamples / world.size(), each = per_rank / run.num_microbatches;
  double loss = 0;
  engine.zero_grad();
  for (int i = 0; i < run.num_microbatches; ++i) {
    const Batch batch = batch_of(step, world.rank() * per_rank + i * each, each);
    engine.set_reduce_gradients(run.reduce_always || i + 1 == run.num_microbatches);
    const at::Tensor part = sum_loss(model(batch.tokens), batch.labels) / num_valid(step);
    part.backward();
    loss += part.item<double>();
  }
  engine.finish_backward();
  return loss;
}

Named whole(const DeviceMesh& mesh, const std::vector<ShardedParameter>& parameters, bool grads) {
  Named named;
  for (const ShardedParameter& parameter : parameters) {
    if (grads && !parameter.trainable) continue;
    const at::Tensor& piece = grads ? parameter.grad : parameter.data;
    int64_t numel = 1;
    for (const int64_t size : parameter.sizes) numel *= size;
    const at::Tensor all = at::zeros({numel}, piece.options());
    all.narrow(0, parameter.begin, piece.numel()).copy_(piece);
    mesh.group(mesh.num_axes() - 1).all_reduce(all).wait();
    named[parameter.name] = all.view(parameter.sizes);
  }
  return named;
}

std::vector<Record> sharded(World& world, const DeviceMesh& mesh, const Case& run, TinyModel& model, FullyShard& engine) {
  const std::vector<ShardedParameter> parameters = engine.parameters();
  std::vector<at::Tensor> weights, grads, states;
  for (const ShardedParameter& parameter : parameters) {
    if (!parameter.trainable) continue;
    weights.push_back(parameter.data);
    grads.push_back(parameter.grad);
  }
  set_use(model, run, world.rank());
  std::vector<Record> records;
  for (int step = 0; step < kNumSteps; ++step) {
    Record record{};
    const at::Tensor loss = at::full({1}, backward_all(world, run, model, engine, step), at::kDouble);
    world.group().all_reduce(loss).wait();
    record.loss = loss.item<double>();
    record.norm = engine.gradient_norm();
    record.grads = whole(mesh, parameters, true);
    update(weights, grads, states, step);
    record.weights = whole(mesh, parameters, false);
    records.push_back(std::move(record));
  }
  return records;
}

double difference(const Named& got, const Named& want) {
  double worst = got.size() == want.size() ? 0 : std::numeric_limits<double>::infinity();
  for (const auto& [name, tensor] : want) {
    const auto found = got.find(name);
    if (found == got.end()) return std::numeric_limits<double>::infinity();
    const at::Tensor a = found->second.to(at::kDouble), b = tensor.to(at::kDouble);
    worst = std::max(worst, ((a - b).abs() / (1 + b.abs())).max().item<double>());
  }
  return worst;
}

}  // namespace hyper_parallel::testing_support
