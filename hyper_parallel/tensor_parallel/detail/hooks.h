// SPDX-License-Identifier: Apache-2.0
// A hook that keeps its region alive.
#pragma once
#include <memory>

#include "hyper_parallel/tensor_parallel/parallel_style.h"

namespace hyper_parallel::detail {

struct RegionHook : ModuleHook {
  explicit RegionHook(const StyleTarget& target) : region(target.region) {}
  const std::shared_ptr<ParallelRegion> region;
};

}  // namespace hyper_parallel::detail
