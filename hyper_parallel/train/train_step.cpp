// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/train/train_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include "hyper_parallel/optim/clip.h"

namespace hyper_parallel {

TrainStep::TrainStep(CausalLm& model, FullyShard& engine, Optimizer& optimizer, const ProcessGroup& group, double max_grad_norm)
    : model_(model), engine_(engine), optimizer_(optimizer), group_(group), max_grad_norm_(max_grad_norm) {}

StepResult TrainStep::accumulate(std::span<const MicroBatch> micro_batches) {
  StepResult result;
  result.tokens = global_tokens(micro_batches);
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, result.tokens));
  engine_.zero_grad();
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    engine_.set_reduce_gradients(i + 1 == micro_batches.size());
    const LossSum loss = model_.loss_sum(micro_batches[i].input_ids, micro_batches[i].labels);
    loss.sum.backward(at::scalar_tensor(scale, loss.sum.options()));
    result.local_loss_sum += loss.sum.item<double>();
  }
  engine_.finish_backward();
  result.loss = global_sum(result.local_loss_sum) * scale;
  result.grad_norm = engine_.gradient_norm();
  return result;
}

void TrainStep::update(const StepResult& result, double lr) {
  optimizer_.step({.learning_rate = lr, .gradient_scale = clip_coefficient(result.grad_norm, max_grad_norm_)});
}

StepResult TrainStep::run(std::span<const MicroBatch> micro_batches, double lr) {
  const StepResult result = accumulate(micro_batches);
  update(result, lr);
  return result;
}

StepResult TrainStep::evaluate(std::span<const MicroBatch> micro_batches) {
  const at::NoGradGuard no_grad;
  StepResult result;
  result.tokens = global_tokens(micro_batches);
  for (const MicroBatch& batch : micro_batches) result.local_loss_sum += model_.loss_sum(batch.input_ids, batch.labels).sum.item<double>();
  result.loss = global_sum(result.local_loss_sum) / static_cast<double>(std::max<int64_t>(1, result.tokens));
  return result;
}

int64_t TrainStep::global_tokens(std::span<const MicroBatch> micro_batches) const {
  int64_t tokens = 0;
  for (const MicroBatch& batch : micro_batches) tokens += count_labels(batch.labels);
  const at::Tensor total = at::scalar_tensor(tokens, at::kLong);
  group_.all_reduce(total).wait();
  return total.item<int64_t>();
}

double TrainStep::global_sum(double value) const {
  const at::Tensor total = at::scalar_tensor(value, at::kDouble);
  group_.all_reduce(total).wait();
  return total.item<double>();
}

}  // namespace hyper_parallel
