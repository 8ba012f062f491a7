// SPDX-License-Identifier: Apache-2.0
// Whether boxes lie inside a tensor and cover it: the checks before a checkpoint is written or believed.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "hyper_parallel/dtensor/box.h"

namespace hyper_parallel::detail {

Box whole_box(std::span<const int64_t> sizes);
bool inside(const Box& box, std::span<const int64_t> sizes);  // same number of dims, within the shape

// A part of the tensor that no box covers; nullopt if all of it is covered. Boxes must be inside the shape. Near-linear in the number of
// boxes where they are disjoint, as they should be.
std::optional<Box> uncovered_part(std::span<const int64_t> sizes, std::span<const Box> boxes);

}  // namespace hyper_parallel::detail
