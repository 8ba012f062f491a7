// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/box.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "hyper_parallel/dtensor/state_dict.h"

namespace hyper_parallel {
namespace {

// Flat indices of a box's elements in row-major order, by counting through the whole tensor.
std::vector<int64_t> elements_of(const Box& box, const std::vector<int64_t>& sizes) {
  int64_t total = 1;
  for (int64_t size : sizes) total *= size;
  std::vector<int64_t> found;
  for (int64_t flat = 0; flat < total; ++flat) {
    int64_t rest = flat;
    bool inside = true;
    for (int dim = int(sizes.size()) - 1; dim >= 0; --dim) {
      const int64_t index = rest % sizes[dim];
      rest /= sizes[dim];
      inside &= index >= box.offsets[dim] && index < box.offsets[dim] + box.sizes[dim];
    }
    if (inside) found.push_back(flat);
  }
  return found;
}

TEST(Box, RangesAreCoveredInMemoryOrderByFewBoxes) {
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{7}, {3, 4}, {2, 3, 4}, {3, 1, 2, 2}, {1, 5}, {4, 1}}) {
    int64_t total = 1;
    for (int64_t size : sizes) total *= size;
    for (int64_t begin = 0; begin <= total; ++begin)
      for (int64_t end = begin; end <= total; ++end) {
        const auto boxes = boxes_of_range(sizes, begin, end);
        EXPECT_LE(boxes.size(), 2 * sizes.size() - 1);
        std::vector<int64_t> covered, expected;
        for (const Box& box : boxes)
          for (int64_t flat : elements_of(box, sizes)) covered.push_back(flat);
        for (int64_t flat = begin; flat < end; ++flat) expected.push_back(flat);
        ASSERT_EQ(covered, expected) << begin << ".." << end;
      }
  }
}

TEST(Box, ScalarsAndEmptyTensors) {
  const auto scalar = boxes_of_range({}, 0, 1);
  ASSERT_EQ(scalar.size(), 1u);
  EXPECT_TRUE(scalar[0].offsets.empty());
  EXPECT_EQ(scalar[0].numel(), 1);
  EXPECT_TRUE(boxes_of_range(std::vector<int64_t>{0, 3}, 0, 0).empty());
}

TEST(Box, IntersectionIsTheSharedBlock) {
  const Box a{{0, 2}, {3, 4}}, b{{1, 0}, {5, 3}};
  EXPECT_EQ(intersect(a, b), (Box{{1, 2}, {2, 1}}));
  EXPECT_EQ(intersect(a, Box{{3, 2}, {1, 1}}), std::nullopt);
  EXPECT_EQ(intersect(a, Box{{0, 2}, {0, 4}}), std::nullopt);
}

TEST(StateEntry, WholeAndRangeEntriesDescribeTheirElements) {
  const at::Tensor piece = at::empty({5});
  const StateEntry range = range_entry("w", {3, 4}, piece, 2);
  int64_t numel = 0;
  for (const Box& box : range.boxes) numel += box.numel();
  EXPECT_EQ(numel, 5);
  EXPECT_TRUE(range.local.is_alias_of(piece));
  const StateEntry whole = whole_entry("w", at::empty({3, 4}));
  EXPECT_EQ(whole.boxes, (std::vector<Box>{{{0, 0}, {3, 4}}}));
  EXPECT_TRUE(whole_entry("empty", at::empty({0, 4})).boxes.empty());
}

}  // namespace
}  // namespace hyper_parallel
