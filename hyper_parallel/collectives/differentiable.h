// SPDX-License-Identifier: Apache-2.0
// Collectives with a backward. They return new tensors and wait before they return; the eager, in-place ones are methods of ProcessGroup.
//
//   namespace cd = hyper_parallel::collectives::differentiable;
//   at::Tensor y = cd::all_gather(group, x, 0);      // [n * rows, ...] from [rows, ...]; backward: reduce_scatter
//   (y * weight).sum().backward();                   // on every rank
//
// All but the four of Megatron's kind are exact: the gradient of x is that of the sum of all ranks' losses. Backwards are made of the same
// functions, so second derivatives work. Backward is collective too: on every rank x must require a gradient, the loss must depend on the
// result, and results must be used in one order. Groups of size 1 give x (or its shape) without any message. Errors: CollectiveError.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "hyper_parallel/collectives/process_group.h"

namespace hyper_parallel::collectives::differentiable {

// y = sum of all x; backward: all_reduce.
at::Tensor all_reduce(const ProcessGroup& group, const at::Tensor& x);
// y = all x one after another in `dim`. `sizes`: each rank's size in `dim`, empty if they are equal. Backward: reduce_scatter.
at::Tensor all_gather(const ProcessGroup& group, const at::Tensor& x, int64_t dim, std::span<const int64_t> sizes = {});
// y = this rank's part in `dim` of the sum of all x. `sizes` as above; empty: x.size(dim) / n. Backward: all_gather.
at::Tensor reduce_scatter(const ProcessGroup& group, const at::Tensor& x, int64_t dim, std::span<const int64_t> sizes = {});
// Part r of x in `split_dim` (a multiple of n) goes to rank r; what comes is joined in `join_dim`. Backward: the other way around.
at::Tensor all_to_all(const ProcessGroup& group, const at::Tensor& x, int64_t split_dim, int64_t join_dim);
// Rows of dim 0: input_splits[r] of them go to rank r, output_splits[r] come from it. Backward: the other way around.
at::Tensor all_to_all_rows(const ProcessGroup& group, const at::Tensor& x, std::span<const int64_t> output_splits,
                           std::span<const int64_t> input_splits);
// y = root's x, which all ranks have in the same shape; backward: the sum of all gradients to root, zeros elsewhere.
at::Tensor broadcast(const ProcessGroup& group, const at::Tensor& x, int root);
// y = x of rank (rank - offset) mod n: a ring of sends and receives. Backward: the other way around. One shape on all ranks.
at::Tensor shift(const ProcessGroup& group, const at::Tensor& x, int offset);

// Megatron's pairs, for a value that is the same on all ranks and a loss that all ranks compute alike and count once.
at::Tensor copy_to_group(const ProcessGroup& group, const at::Tensor& x);      // f: identity; backward: all_reduce
at::Tensor reduce_from_group(const ProcessGroup& group, const at::Tensor& x);  // g: all_reduce; backward: identity
// Own part; backward: all_gather. All_gather; backward: own part. `sizes` as above.
at::Tensor scatter_to_group(const ProcessGroup& group, const at::Tensor& x, int64_t dim, std::span<const int64_t> sizes = {});
at::Tensor gather_from_group(const ProcessGroup& group, const at::Tensor& x, int64_t dim, std::span<const int64_t> sizes = {});

}  // namespace hyper_parallel::collectives::differentiable
