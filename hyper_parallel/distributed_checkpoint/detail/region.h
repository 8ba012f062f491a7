// SPDX-License-Identifier: Apache-2.0
// Walks a block that two row-major arrays share, in the longest contiguous runs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace hyper_parallel::detail {

// A block of `region` elements that starts at `source_begin` in an array of shape `source` and at `target_begin` in one of shape `target`.
// Calls run(source_element, target_element, num_elements) for each contiguous run; nothing if the block is empty.
template <class Run>
void for_each_run(std::span<const int64_t> source, std::span<const int64_t> source_begin, std::span<const int64_t> target,
                  std::span<const int64_t> target_begin, std::span<const int64_t> region, const Run& run) {
  const int num_dims = static_cast<int>(region.size());
  if (std::any_of(region.begin(), region.end(), [](int64_t size) { return size == 0; })) return;
  std::vector<int64_t> source_stride(num_dims + 1, 1), target_stride(num_dims + 1, 1);
  int64_t source_element = 0, target_element = 0;
  for (int dim = num_dims - 1; dim >= 0; --dim) {
    source_stride[dim] = source_stride[dim + 1] * source[dim];
    target_stride[dim] = target_stride[dim + 1] * target[dim];
    source_element += source_begin[dim] * source_stride[dim + 1];
    target_element += target_begin[dim] * target_stride[dim + 1];
  }
  int outer = num_dims;  // dims [outer, num_dims) form one run
  int64_t run_elements = 1;
  while (outer > 0) {
    --outer;
    run_elements *= region[outer];
    if (region[outer] != source[outer] || region[outer] != target[outer]) break;
  }
  std::vector<int64_t> index(outer, 0);
  while (true) {
    run(source_element, target_element, run_elements);
    int dim = outer - 1;
    for (; dim >= 0; --dim) {
      source_element += source_stride[dim + 1];
      target_element += target_stride[dim + 1];
      if (++index[dim] < region[dim]) break;
      source_element -= index[dim] * source_stride[dim + 1];
      target_element -= index[dim] * target_stride[dim + 1];
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

}  // namespace hyper_parallel::detail
