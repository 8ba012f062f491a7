// SPDX-License-Identifier: Apache-2.0
// The part of a tensor that one rank of a model-parallel group holds: ranges of indices along one dim, one after another, or all of it.
//
//   TensorPart part{.dim = 0, .ranges = {{0, 2}, {8, 9}}};      // rows 0, 1 and 8 of [12, 4]
//   part.local_sizes({12, 4});                                  // {3, 4}
//   part.for_runs({12, 4}, 4, 12, [](int64_t begin, int64_t count) {...});   // (4, 4), (32, 4)
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace hyper_parallel {

struct IndexRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};

struct TensorPart {
  int64_t dim = -1;                // -1: the whole tensor
  std::vector<IndexRange> ranges;  // disjoint, ascending, none empty

  bool is_whole() const { return dim < 0; }
  int64_t size() const;  // along dim
  std::vector<int64_t> local_sizes(std::span<const int64_t> sizes) const;
  // Elements [begin, end) of the flattened part as runs of neighbours in the flattened whole of shape `sizes`, in order.
  void for_runs(std::span<const int64_t> sizes, int64_t begin, int64_t end,
                const std::function<void(int64_t whole_begin, int64_t count)>& visit) const;
  bool operator==(const TensorPart&) const = default;
};

}  // namespace hyper_parallel
