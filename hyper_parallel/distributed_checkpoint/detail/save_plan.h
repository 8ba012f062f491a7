// SPDX-License-Identifier: Apache-2.0
// Who writes what. Every rank derives the same plan from all ranks' lists of boxes.
#pragma once
#include <c10/core/ScalarType.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hyper_parallel/dtensor/state_dict.h"

namespace hyper_parallel::detail {

struct PlannedPiece {
  size_t tensor;  // index into SavePlan::tensors
  Box box;
  int writer;  // rank of the group
};

struct PlannedTensor {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
};

struct SavePlan {
  std::vector<PlannedTensor> tensors;  // by name
  std::vector<PlannedPiece> pieces;    // by tensor, then box
};

// What a rank tells the others. CheckpointError if a name occurs twice or an entry's boxes do not fit its shape.
nlohmann::json describe_state(const StateDict& state);

// CheckpointError if ranks disagree on a shape or dtype, or hold only a part of a tensor together.
SavePlan make_save_plan(const std::vector<nlohmann::json>& descriptions);

}  // namespace hyper_parallel::detail
