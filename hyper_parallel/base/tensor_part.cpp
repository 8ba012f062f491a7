// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/tensor_part.h"

#include <algorithm>

namespace hyper_parallel {
namespace {

int64_t product(std::span<const int64_t> sizes) {
  int64_t result = 1;
  for (int64_t size : sizes) result *= size;
  return result;
}

}  // namespace

int64_t TensorPart::size() const {
  int64_t total = 0;
  for (const IndexRange& range : ranges) total += range.size();
  return total;
}

std::vector<int64_t> TensorPart::local_sizes(std::span<const int64_t> sizes) const {
  std::vector<int64_t> local(sizes.begin(), sizes.end());
  if (!is_whole()) local.at(static_cast<size_t>(dim)) = size();
  return local;
}

void TensorPart::for_runs(std::span<const int64_t> sizes, int64_t begin, int64_t end,
                          const std::function<void(int64_t whole_begin, int64_t count)>& visit) const {
  if (begin >= end) return;
  if (is_whole()) return visit(begin, end - begin);
  const int64_t inner = product(sizes.subspan(static_cast<size_t>(dim) + 1));
  const int64_t outer_stride = sizes[static_cast<size_t>(dim)] * inner;
  const int64_t local_stride = size() * inner;
  for (int64_t outer = begin / local_stride; outer * local_stride < end; ++outer) {
    int64_t local = outer * local_stride;
    for (const IndexRange& range : ranges) {
      const int64_t from = std::max(begin, local), to = std::min(end, local + range.size() * inner);
      if (from < to) visit(outer * outer_stride + range.begin * inner + from - local, to - from);
      local += range.size() * inner;
    }
  }
}

}  // namespace hyper_parallel
