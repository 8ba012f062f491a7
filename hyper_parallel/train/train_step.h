// SPDX-License-Identifier: Apache-2.0
// One optimizer step over microbatches, and evaluation. The loss is the sum over valid tokens divided by their number in the whole global
// batch (all ranks, all microbatches); gradients are sums of that, so nothing depends on how the batch is cut.
//
//   TrainStep step(*model, *engine, *optimizer, world.group(), 1.0);
//   StepResult result = step.run(micro_batches, lr);
//
// Collective over `group`, which must span the data-parallel ranks. A batch without any valid token gives loss 0 and zero gradients.
#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "hyper_parallel/collectives/process_group.h"
#include "hyper_parallel/fully_shard/fully_shard.h"
#include "hyper_parallel/models/causal_lm.h"
#include "hyper_parallel/optim/optimizer.h"

namespace hyper_parallel {

struct MicroBatch {
  at::Tensor input_ids;  // int64 [batch, seq]
  at::Tensor labels;     // int64 [batch, seq]; kIgnoreLabel leaves a position out
};

struct StepResult {
  double loss = 0;            // mean over the valid tokens of the global batch
  double grad_norm = 0;       // before clipping
  int64_t tokens = 0;         // valid ones, all ranks
  double local_loss_sum = 0;  // of this rank, to find who brought a NaN
};

class TrainStep {
 public:
  // max_grad_norm 0: no clipping. References must outlive this.
  TrainStep(CausalLm& model, FullyShard& engine, Optimizer& optimizer, const ProcessGroup& group, double max_grad_norm);

  // Forward and backward of all microbatches: gradients are then complete and unclipped in engine.parameters().
  StepResult accumulate(std::span<const MicroBatch> micro_batches);
  // The update, with the clip factor folded in. Call only with a finite result.
  void update(const StepResult& result, double lr);
  StepResult run(std::span<const MicroBatch> micro_batches, double lr);

  // Loss without gradients.
  StepResult evaluate(std::span<const MicroBatch> micro_batches);

 private:
  int64_t global_tokens(std::span<const MicroBatch> micro_batches) const;
  double global_sum(double value) const;

  CausalLm& model_;
  FullyShard& engine_;
  Optimizer& optimizer_;
  ProcessGroup group_;
  double max_grad_norm_;
};

}  // namespace hyper_parallel
