// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/detail/coverage.h"

#include <algorithm>

namespace hyper_parallel::detail {
namespace {

struct Corner {
  std::vector<int64_t> at;
  int sign;
};

void append_corners(std::vector<Corner>& corners, const Box& box, int sign) {
  const size_t num_dims = box.sizes.size();
  for (uint64_t mask = 0; mask < (uint64_t{1} << num_dims); ++mask) {
    Corner corner{box.offsets, sign};
    for (size_t dim = 0; dim < num_dims; ++dim) {
      if ((mask >> dim & 1) == 0) continue;
      corner.at[dim] += box.sizes[dim];
      corner.sign = -corner.sign;
    }
    corners.push_back(std::move(corner));
  }
}

// The indicator function of a box is the running sum (in every dim) of its signed corners, so boxes cover each element exactly once if and
// only if their corners add up to the whole's.
bool tiles_exactly(const Box& whole, std::span<const Box> boxes) {
  std::vector<Corner> corners;
  append_corners(corners, whole, -1);
  for (const Box& box : boxes) append_corners(corners, box, 1);
  std::sort(corners.begin(), corners.end(), [](const Corner& a, const Corner& b) { return a.at < b.at; });
  for (size_t first = 0; first < corners.size();) {
    int sum = 0;
    size_t last = first;
    for (; last < corners.size() && corners[last].at == corners[first].at; ++last) sum += corners[last].sign;
    if (sum != 0) return false;
    first = last;
  }
  return true;
}

// What is left of `box` without `hole`: at most two slabs a dim.
void subtract(const Box& box, const Box& hole, std::vector<Box>& rest) {
  const auto common = intersect(box, hole);
  if (!common) {
    rest.push_back(box);
    return;
  }
  Box remaining = box;
  for (size_t dim = 0; dim < box.sizes.size(); ++dim) {
    const int64_t begin = remaining.offsets[dim], end = begin + remaining.sizes[dim];
    const int64_t hole_begin = common->offsets[dim], hole_end = hole_begin + common->sizes[dim];
    const auto slab = [&](int64_t from, int64_t to) {
      if (from >= to) return;
      rest.push_back(remaining);
      rest.back().offsets[dim] = from;
      rest.back().sizes[dim] = to - from;
    };
    slab(begin, hole_begin);
    slab(hole_end, end);
    remaining.offsets[dim] = hole_begin;
    remaining.sizes[dim] = hole_end - hole_begin;
  }
}

}  // namespace

Box whole_box(std::span<const int64_t> sizes) {
  return {std::vector<int64_t>(sizes.size(), 0), std::vector<int64_t>(sizes.begin(), sizes.end())};
}

bool inside(const Box& box, std::span<const int64_t> sizes) {
  if (box.offsets.size() != sizes.size() || box.sizes.size() != sizes.size()) return false;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (box.offsets[dim] < 0 || box.sizes[dim] < 0 || box.offsets[dim] > sizes[dim] - box.sizes[dim]) return false;
  }
  return true;
}

std::optional<Box> uncovered_part(std::span<const int64_t> sizes, std::span<const Box> boxes) {
  const Box whole = whole_box(sizes);
  if (whole.numel() == 0) return std::nullopt;
  constexpr size_t kMaxCornerDims = 16;
  if (sizes.size() <= kMaxCornerDims && tiles_exactly(whole, boxes)) return std::nullopt;
  std::vector<Box> rest{whole}, next;
  for (const Box& box : boxes) {
    next.clear();
    for (const Box& part : rest) subtract(part, box, next);
    rest.swap(next);
    if (rest.empty()) return std::nullopt;
  }
  return rest.front();
}

}  // namespace hyper_parallel::detail
