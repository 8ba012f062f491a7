// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/box.h"

#include <c10/util/accumulate.h>

#include <algorithm>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

struct RangeSplitter {
  std::span<const int64_t> sizes;
  std::vector<int64_t> prefix;  // fixed index of each outer dim
  std::vector<Box> boxes;

  void emit_rows(size_t dim, int64_t first, int64_t last) {
    Box box{prefix, std::vector<int64_t>(prefix.size(), 1)};
    box.offsets.push_back(first);
    box.sizes.push_back(last - first);
    for (size_t inner = dim + 1; inner < sizes.size(); ++inner) {
      box.offsets.push_back(0);
      box.sizes.push_back(sizes[inner]);
    }
    boxes.push_back(std::move(box));
  }

  void split_row(size_t dim, int64_t row, int64_t begin, int64_t end) {
    prefix.push_back(row);
    split(dim + 1, begin, end);
    prefix.pop_back();
  }

  // Elements [begin, end) of the block of dims [dim, ...) under `prefix`.
  void split(size_t dim, int64_t begin, int64_t end) {
    if (begin >= end) return;
    const int64_t inner = c10::multiply_integers(sizes.subspan(dim + 1));
    int64_t first = begin / inner;
    const int64_t last = end / inner, head = begin % inner, tail = end % inner;
    if (head != 0) {
      split_row(dim, first, head, std::min(end - first * inner, inner));
      ++first;
    }
    if (last > first) emit_rows(dim, first, last);
    if (tail != 0 && last >= first) split_row(dim, last, 0, tail);
  }
};

// A box of the part in terms of the whole tensor: cut where ranges meet, row by row of the outer dims if there are several cuts.
void append_whole_boxes(const Box& local, const TensorPart& part, size_t outer_dim, std::vector<Box>& boxes) {
  const auto dim = static_cast<size_t>(part.dim);
  std::vector<Box> cuts;
  int64_t at = 0;
  for (const IndexRange& range : part.ranges) {
    const int64_t from = std::max(local.offsets[dim], at), to = std::min(local.offsets[dim] + local.sizes[dim], at + range.size());
    if (from < to) {
      cuts.push_back(local);
      cuts.back().offsets[dim] = range.begin + from - at;
      cuts.back().sizes[dim] = to - from;
    }
    at += range.size();
  }
  while (outer_dim < dim && local.sizes[outer_dim] == 1) ++outer_dim;
  if (cuts.size() == 1 || outer_dim >= dim) {
    boxes.insert(boxes.end(), cuts.begin(), cuts.end());
    return;
  }
  for (int64_t row = 0; row < local.sizes[outer_dim]; ++row) {
    Box one = local;
    one.offsets[outer_dim] += row;
    one.sizes[outer_dim] = 1;
    append_whole_boxes(one, part, outer_dim + 1, boxes);
  }
}

}  // namespace

int64_t Box::numel() const { return c10::multiply_integers(sizes); }

std::optional<Box> intersect(const Box& a, const Box& b) {
  HYPER_PARALLEL_CHECK(a.offsets.size() == b.offsets.size(), "boxes of ", a.offsets.size(), " and ", b.offsets.size(), " dims");
  Box common;
  for (size_t dim = 0; dim < a.offsets.size(); ++dim) {
    const int64_t begin = std::max(a.offsets[dim], b.offsets[dim]);
    const int64_t end = std::min(a.offsets[dim] + a.sizes[dim], b.offsets[dim] + b.sizes[dim]);
    if (begin >= end) return std::nullopt;
    common.offsets.push_back(begin);
    common.sizes.push_back(end - begin);
  }
  return common;
}

std::vector<Box> boxes_of_range(std::span<const int64_t> sizes, int64_t begin, int64_t end) {
  HYPER_PARALLEL_CHECK(begin >= 0 && end <= c10::multiply_integers(sizes), "range [", begin, ", ", end, ") of ", sizes);
  if (begin >= end) return {};
  if (sizes.empty()) return {Box{}};
  RangeSplitter splitter{sizes, {}, {}};
  splitter.split(0, begin, end);
  return std::move(splitter.boxes);
}

std::vector<Box> boxes_of_range(std::span<const int64_t> sizes, const TensorPart& part, int64_t begin, int64_t end) {
  if (part.is_whole()) return boxes_of_range(sizes, begin, end);
  std::vector<Box> boxes;
  for (const Box& local : boxes_of_range(part.local_sizes(sizes), begin, end)) append_whole_boxes(local, part, 0, boxes);
  return boxes;
}

}  // namespace hyper_parallel
