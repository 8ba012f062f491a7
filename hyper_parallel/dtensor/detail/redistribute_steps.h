// SPDX-License-Identifier: Apache-2.0
// What one step of a redistribution does to the local tensor.
#pragma once
#include <ATen/core/Tensor.h>

#include "hyper_parallel/dtensor/redistribute.h"

namespace hyper_parallel::detail {

at::Tensor run_step(const RedistributeStep& step, const Spec* before, const Spec* after, const at::Tensor& local);

// The elements of `box`, which lies in the piece, as a view of the shard.
at::Tensor block_of(const at::Tensor& contiguous_local, const ShardPiece& piece, const Box& box);

// Steps of one kind over one group, on tensors of one dtype (and one reduction): their data goes through one collective.
struct StepUse {
  const RedistributeStep* step;
  const Spec *before, *after;
  at::Tensor local;  // replaced by the result
};
void run_steps_together(std::span<StepUse* const> uses);

}  // namespace hyper_parallel::detail
