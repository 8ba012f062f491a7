// SPDX-License-Identifier: Apache-2.0
#include "tests/composition/support/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/philox.h"
#include "hyper_parallel/models/causal_lm.h"

namespace hyper_parallel::composition {
namespace {

struct Moments {
  at::Tensor first, second;
};

// Sequences of one rank: for each microbatch, ranks take contiguous parts in rank order.
int64_t rank_of(const Row& row, int64_t sequence) {
  const int64_t per_rank = kNumSequences / (row.replicate * row.fsdp * row.accumulation);
  return sequence / per_rank % (row.replicate * row.fsdp);
}

void ignore_labels(const Row& row, int64_t* labels) {
  const int64_t num_ranks = row.replicate * row.fsdp;
  std::vector<int64_t> kept(num_ranks, 0);
  for (int64_t i = 0; i < kNumSequences * kSequenceLength; ++i) {
    const int64_t rank = rank_of(row, i / kSequenceLength);
    const bool keep = row.labels == "all" || (row.labels == "seven_one" && kept[rank] < (rank % 2 == 0 ? 7 : 1)) ||
                      (row.labels == "last_rank_none" && rank != num_ranks - 1);
    if (keep)
      ++kept[rank];
    else
      labels[i] = kIgnoreLabel;
  }
}

// torch.optim.AdamW's formula.
void adamw(at::Tensor weight, const at::Tensor& gradient, Moments& moments, int64_t step, bool decays) {
  if (decays) weight.mul_(1 - kLearningRate * kWeightDecay);
  moments.first.mul_(kBeta1).add_(gradient, 1 - kBeta1);
  moments.second.mul_(kBeta2).addcmul_(gradient, gradient, 1 - kBeta2);
  const double step_size = kLearningRate / (1 - std::pow(kBeta1, step));
  const at::Tensor denominator = moments.second.sqrt().div_(std::sqrt(1 - std::pow(kBeta2, step))).add_(kEpsilon);
  weight.addcdiv_(moments.first, denominator, -step_size);
}

}  // namespace

at::ScalarType dtype_of(const Row& row) {
  HYPER_PARALLEL_CHECK(row.dtype == "f64" || row.dtype == "f32", "dtype ", row.dtype);
  return row.dtype == "f64" ? at::kDouble : at::kFloat;
}

Batch make_batch(const Row& row, int64_t step) {
  const int64_t vocab = row.config.at("vocab_size");
  const Philox tokens(step, "tokens"), targets(step, "labels");
  Batch batch{at::full({kNumSequences, kSequenceLength}, 0, at::kLong), at::full({kNumSequences, kSequenceLength}, 0, at::kLong)};
  for (int64_t i = 0; i < kNumSequences * kSequenceLength; ++i) {
    batch.input_ids.data_ptr<int64_t>()[i] = static_cast<int64_t>(tokens.integer(i, vocab));
    batch.labels.data_ptr<int64_t>()[i] = static_cast<int64_t>(targets.integer(i, vocab));
  }
  ignore_labels(row, batch.labels.data_ptr<int64_t>());
  return batch;
}

std::vector<ReferenceStep> run_reference(const Row& row) {
  const auto model = make_model(row.model_type, row.config);
  materialize(model->module(), {.dtype = dtype_of(row), .seed = kSeed});
  const auto parameters = model->module().named_parameters();
  std::map<std::string, Moments> moments;
  for (const auto& [name, slot] : parameters) moments[name] = {at::zeros_like(slot->tensor), at::zeros_like(slot->tensor)};
  std::vector<ReferenceStep> steps;
  for (int64_t step = 1; step <= row.steps; ++step) {
    const Batch batch = make_batch(row, step);
    for (const auto& [name, slot] : parameters) slot->tensor.mutable_grad() = at::Tensor();
    const LossSum loss = model->loss_sum(batch.input_ids, batch.labels);
    const at::Tensor mean = loss.sum / static_cast<double>(std::max<int64_t>(1, count_labels(batch.labels)));
    mean.backward();
    ReferenceStep result{.loss = mean.item<double>()};
    double squares = 0;
    const at::NoGradGuard no_grad;
    for (const auto& [name, slot] : parameters) {
      const at::Tensor gradient = slot->tensor.grad().defined() ? slot->tensor.grad() : at::zeros_like(slot->tensor);
      result.gradients[name] = gradient.clone();
      squares += gradient.to(at::kDouble).square().sum().item<double>();
    }
    result.norm = std::sqrt(squares);
    const double clip = std::min(1.0, kMaxNorm / (result.norm + 1e-6));
    for (const auto& [name, slot] : parameters) {
      adamw(slot->tensor, result.gradients[name] * clip, moments[name], step, slot->decays);
      result.weights[name] = slot->tensor.detach().clone();
    }
    steps.push_back(std::move(result));
  }
  return steps;
}

}  // namespace hyper_parallel::composition
