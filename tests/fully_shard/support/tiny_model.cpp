// SPDX-License-Identifier: Apache-2.0
#include "tests/fully_shard/support/tiny_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::testing_support {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Re-entrant: the inner backward accumulates the parameters' gradients itself.
struct Recomputed : torch::autograd::Function<Recomputed> {
  struct Body : torch::CustomClassHolder {
    std::function<at::Tensor(const at::Tensor&)> run;
  };
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, c10::intrusive_ptr<Body> body) {
    context->save_for_backward({x});
    context->saved_data["body"] = c10::IValue::make_capsule(body);
    return body->run(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    at::AutoGradMode enable(true);  // backward runs with gradients off
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const at::Tensor y = static_cast<Body*>(context->saved_data["body"].toCapsule().get())->run(x);
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

at::Tensor recomputed(std::function<at::Tensor(const at::Tensor&)> run, const at::Tensor& x) {
  auto body = c10::make_intrusive<Recomputed::Body>();
  body->run = std::move(run);
  return Recomputed::apply(x, body);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& gain) { return x * (x.pow(2).mean(-1, true) + 1e-6).rsqrt() * gain; }

}  // namespace

Batch batch_of(int step, int64_t from, int64_t count) {
  Batch batch{at::empty({count, kLength}, at::kLong), at::full({count, kLength}, -100, at::kLong)};
  int64_t* tokens = batch.tokens.mutable_data_ptr<int64_t>();
  int64_t* labels = batch.labels.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t t = 0; t < kLength; ++t) {
      const int64_t sample = from + i;
      tokens[i * kLength + t] = (sample * 5 + t * 3 + step * 7 + sample * t) % kVocab;
      if (sample < kFirstWithoutLabels && t < (sample % 2 == 1 ? 1 : 7)) labels[i * kLength + t] = (sample * 2 + t * t + step) % kVocab;
    }
  }
  return batch;
}

at::Tensor sum_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten(), {}, at::Reduction::Sum, -100);
}

at::Tensor TinyEmbedding::forward(const at::Tensor& tokens) { return at::embedding(weight, tokens) * scale.tensor; }

TinyBlock::TinyBlock(Slot slot, Recompute recompute) : ModuleOf(std::move(slot)), recompute(recompute) { gate.trainable = false; }

at::Tensor TinyBlock::forward(const at::Tensor& x) {
  return recompute == Recompute::kInside ? recomputed([this](const at::Tensor& t) { return body(t); }, x) : body(x);
}

at::Tensor TinyBlock::body(const at::Tensor& x) {
  const at::Tensor hidden = at::linear(rms_norm(x, gain), up, up_bias.tensor).relu();
  const at::Tensor y = x + at::linear(hidden, down) * gate.tensor;
  return uses_shift ? y + shift.tensor : y;
}

TinyHead::TinyHead(Slot slot, Parameter& tied) : ModuleOf(std::move(slot)), weight(tied) { tie("weight", tied); }

at::Tensor TinyHead::forward(const at::Tensor& x) { return at::linear(rms_norm(x, gain), weight, bias.tensor); }

TinyModel::TinyModel(const TinyOptions& options) : ModuleOf(root()), options(options) {
  for (int i = 0; i < 3; ++i) blocks.emplace_back(child("blocks." + std::to_string(i)), options.recompute);
  blocks[1].uses_shift = false;  // never used, on any rank
  if (!options.freeze_first) return;
  for (Module* module : {static_cast<Module*>(&embed), static_cast<Module*>(&blocks[0])}) {
    for (const auto& [name, slot] : module->own_parameters()) slot->trainable = false;
  }
}

at::Tensor TinyModel::forward(const at::Tensor& tokens) {
  at::Tensor x = embed(tokens);
  for (const int index : options.calls) {
    TinyBlock& block = blocks[index];
    x = options.recompute == Recompute::kAround ? recomputed([&block](const at::Tensor& t) { return block(t); }, x) : block(x);
  }
  if (fail == Fail::kForward) throw RuntimeError("injected in forward");
  if (fail == Fail::kBackward) x.register_hook([](const at::Tensor&) { throw RuntimeError("injected in backward"); });
  return head(x) * temperature.tensor;
}

std::vector<Module*> TinyModel::units() {
  std::vector<Module*> all{&embed};
  for (TinyBlock& block : blocks) all.push_back(&block);
  all.push_back(&head);
  return all;
}

}  // namespace hyper_parallel::testing_support
