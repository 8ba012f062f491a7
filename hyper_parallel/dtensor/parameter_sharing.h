// SPDX-License-Identifier: Apache-2.0
// What engines that shard or reduce gradients must know of a parameter that several ranks of a model-parallel group hold.
#pragma once
#include "hyper_parallel/collectives/process_group.h"

namespace hyper_parallel {

struct ParameterSharing {
  bool in_common = false;           // other ranks hold the same elements, and say so too
  ProcessGroup sum_gradients = {};  // ranks whose gradients are terms of the whole one; invalid: this rank's is complete
  bool counted = true;              // in norms: one of the ranks that hold the same elements counts them

  friend bool operator==(const ParameterSharing&, const ParameterSharing&) = default;
};

}  // namespace hyper_parallel
