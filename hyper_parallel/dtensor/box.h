// SPDX-License-Identifier: Apache-2.0
// Boxes: axis-aligned blocks of a global tensor. Every shard of every placement is a short list of disjoint boxes, which is all that
// checkpoints need to know of a layout.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hyper_parallel/base/tensor_part.h"

namespace hyper_parallel {

struct Box {
  std::vector<int64_t> offsets;  // global index of the first element, one per dim
  std::vector<int64_t> sizes;
  int64_t numel() const;
  bool operator==(const Box&) const = default;
};

// The part that two boxes of one tensor share; nullopt if none (or empty).
std::optional<Box> intersect(const Box& a, const Box& b);

// The elements [begin, end) of a row-major tensor of shape `sizes`, as boxes in memory order: a partial head, full middle rows, a
// partial tail at each level, at most 2 * dims - 1 boxes. A scalar is one box without dims.
std::vector<Box> boxes_of_range(std::span<const int64_t> sizes, int64_t begin, int64_t end);
// The same for elements [begin, end) of the flattened part of such a tensor; boxes are of the whole tensor.
std::vector<Box> boxes_of_range(std::span<const int64_t> sizes, const TensorPart& part, int64_t begin, int64_t end);

}  // namespace hyper_parallel
