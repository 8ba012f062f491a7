// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/tensor_part.h"

#include <gtest/gtest.h>

namespace hyper_parallel {
namespace {

// The flat index, in the whole, of every element of the part, by the definition.
std::vector<int64_t> elements(const TensorPart& part, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> result;
  std::vector<int64_t> index(sizes.size(), 0);
  int64_t total = 1;
  for (int64_t size : sizes) total *= size;
  for (int64_t flat = 0; flat < total; ++flat) {
    int64_t rest = flat, along = 0;
    for (size_t dim = sizes.size(); dim-- > 0; rest /= sizes[dim])
      if (int64_t(dim) == part.dim) along = rest % sizes[dim];
    bool held = part.is_whole();
    for (const IndexRange& range : part.ranges) held |= along >= range.begin && along < range.end;
    if (held) result.push_back(flat);
  }
  return result;
}

TEST(TensorPart, RunsAreTheElementsInOrder) {
  const std::vector<int64_t> sizes{3, 5, 2};
  const std::vector<TensorPart> parts{{},      {0, {{1, 3}}}, {0, {{0, 1}, {2, 3}}}, {1, {{1, 2}, {3, 5}}},
                                      {1, {}}, {2, {{1, 2}}}, {2, {{0, 1}, {1, 2}}}};
  for (const TensorPart& part : parts) {
    const std::vector<int64_t> want = elements(part, sizes);
    int64_t local = 1;
    for (int64_t size : part.local_sizes(sizes)) local *= size;
    ASSERT_EQ(local, int64_t(want.size()));
    for (int64_t begin = 0; begin <= local; ++begin) {
      for (int64_t end = begin; end <= local; ++end) {
        std::vector<int64_t> got;
        part.for_runs(sizes, begin, end, [&](int64_t first, int64_t count) {
          ASSERT_GT(count, 0);
          for (int64_t i = 0; i < count; ++i) got.push_back(first + i);
        });
        ASSERT_EQ(got, std::vector<int64_t>(want.begin() + begin, want.begin() + end)) << part.dim << " [" << begin << ", " << end << ")";
      }
    }
  }
}

}  // namespace
}  // namespace hyper_parallel
