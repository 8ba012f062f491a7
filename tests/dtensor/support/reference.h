// SPDX-License-Identifier: Apache-2.0
// What each rank should hold, made by plain slicing of the whole tensor with at::chunk, narrow and cat: independent of the library's
// interval code. Partial terms are whole numbers, so every sum is exact.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>

#include "hyper_parallel/dtensor/spec.h"

namespace hyper_parallel::testing_support {

inline at::Tensor piece_of(const at::Tensor& whole, int dim, int64_t count, int64_t index) {
  if (whole.size(dim) == 0) return whole;
  const auto pieces = whole.chunk(count, dim);
  return index < int64_t(pieces.size()) ? pieces[index] : whole.narrow(dim, 0, 0);
}

inline at::Tensor term_of(const at::Tensor& value, ReduceOp reduce, int64_t count, int64_t index) {
  const at::Tensor position = at::arange(value.numel(), value.options()).view(value.sizes());
  switch (reduce) {
    case ReduceOp::kSum:
      return index + 1 < count ? value * (index + 2) : value * (1 - (count - 1) * (count + 2) / 2);
    case ReduceOp::kAvg:
      return value + (count == 1 ? position * 0 : index == 0 ? position : index == 1 ? -position : position * 0);
    case ReduceOp::kMax:
      return at::where(position.remainder(count) == index, value, value - 7);
    case ReduceOp::kMin:
      return at::where(position.remainder(count) == index, value, value + 7);
    case ReduceOp::kProd:
      return index == 0 ? value : value * 0 + 1;
  }
  return value;
}

// The local tensor of the rank at `coordinates`.
inline at::Tensor reference_local(const at::Tensor& whole, const DeviceMesh& mesh, const std::vector<Placement>& placements,
                                  const std::vector<int64_t>& coordinates) {
  at::Tensor local = whole;
  for (size_t axis = 0; axis < placements.size(); ++axis)
    if (placements[axis].is_partial()) local = term_of(local, placements[axis].reduce, mesh.size(int(axis)), coordinates[axis]);
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement& placement = placements[axis];
    const int64_t count = mesh.size(int(axis)), index = coordinates[axis];
    if (placement.kind == Placement::Kind::kShard) local = piece_of(local, placement.dim, count, index);
    if (placement.kind != Placement::Kind::kStridedShard) continue;
    std::vector<at::Tensor> parts;
    for (int64_t block = 0; block < placement.split; ++block)
      parts.push_back(piece_of(piece_of(local, placement.dim, placement.split, block), placement.dim, count, index));
    local = at::cat(parts, placement.dim);
  }
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_ragged()) continue;
    const int dims = placements[axis].dim < 0 ? int(local.dim()) : placements[axis].dim;
    local = local.contiguous().flatten(0, dims - 1);
    int64_t begin = 0;
    for (int64_t before = 0; before < coordinates[axis]; ++before) begin += placements[axis].sizes[before];
    local = local.narrow(0, begin, placements[axis].sizes[coordinates[axis]]);
  }
  return local.contiguous();
}

inline at::Tensor reference_local(const at::Tensor& whole, const Layout& layout) {
  return reference_local(whole, layout.mesh(), layout.placements(), own_coordinates(layout.mesh()));
}

}  // namespace hyper_parallel::testing_support
