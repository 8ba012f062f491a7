// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/state_dict.h"

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {

StateEntry whole_entry(std::string name, const at::Tensor& tensor) {
  HYPER_PARALLEL_CHECK(tensor.is_contiguous(), name, ": a state entry must be contiguous, has strides ", tensor.strides());
  StateEntry entry{std::move(name), tensor.sizes().vec(), tensor.detach(), {}};
  if (tensor.numel() > 0) entry.boxes.push_back({std::vector<int64_t>(entry.sizes.size(), 0), entry.sizes});
  return entry;
}

StateEntry range_entry(std::string name, std::vector<int64_t> sizes, const at::Tensor& piece, int64_t begin, const TensorPart& part) {
  HYPER_PARALLEL_CHECK(piece.is_contiguous(), name, ": a state entry must be contiguous, has strides ", piece.strides());
  StateEntry entry{std::move(name), std::move(sizes), piece.detach(), {}};
  entry.boxes = boxes_of_range(entry.sizes, part, begin, begin + piece.numel());
  return entry;
}

}  // namespace hyper_parallel
