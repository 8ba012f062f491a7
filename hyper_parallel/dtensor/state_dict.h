// SPDX-License-Identifier: Apache-2.0
// What a rank holds of the global state: one entry per global tensor, whose local part is a list of boxes. Engines produce it, checkpoints
// and model folders read and write it; nobody else needs to know the layout.
//
//   StateDict state = engine.state_dict();        // aliases the engine's memory: loading writes into it
//   save_checkpoint(world.group(), folder, {state, extra});
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "hyper_parallel/dtensor/box.h"

namespace hyper_parallel {

struct StateEntry {
  std::string name;            // full name; unique within a StateDict
  std::vector<int64_t> sizes;  // of the global tensor
  // This rank's elements: contiguous, any shape, the boxes one after another, each row-major. numel() is the boxes' sum, 0 for none.
  at::Tensor local;
  std::vector<Box> boxes;
};

using StateDict = std::vector<StateEntry>;

// The whole tensor on this rank, as one box.
StateEntry whole_entry(std::string name, const at::Tensor& tensor);
// Elements [begin, begin + piece.numel()) of the flattened part of a tensor of shape `sizes`.
StateEntry range_entry(std::string name, std::vector<int64_t> sizes, const at::Tensor& piece, int64_t begin, const TensorPart& part = {});

}  // namespace hyper_parallel
