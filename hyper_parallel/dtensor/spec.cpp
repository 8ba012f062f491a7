// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/spec.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/dtensor/dtensor_impl.h"

namespace hyper_parallel {
namespace {

int64_t product(std::span<const int64_t> sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }

int64_t total(const std::vector<Interval>& intervals) {
  int64_t sum = 0;
  for (const Interval& interval : intervals) sum += interval.size();
  return sum;
}

void append(std::vector<Interval>& intervals, Interval next) {
  if (next.size() == 0) return;
  if (!intervals.empty() && intervals.back().end == next.begin)
    intervals.back().end = next.end;
  else
    intervals.push_back(next);
}

// Elements [part) of the concatenated `intervals`.
void append_part(std::vector<Interval>& result, const std::vector<Interval>& intervals, Interval part) {
  int64_t position = 0;
  for (const Interval& interval : intervals) {
    const int64_t begin = std::max(part.begin, position), end = std::min(part.end, position + interval.size());
    if (begin < end) append(result, {interval.begin + begin - position, interval.begin + end - position});
    position += interval.size();
  }
}

int ragged_axis(std::span<const Placement> placements) {
  for (size_t axis = 0; axis < placements.size(); ++axis)
    if (placements[axis].is_ragged()) return int(axis);
  return -1;
}

size_t flattened_dims(const Placement& placement, size_t dims) { return placement.dim < 0 ? dims : size_t(placement.dim); }

using DimIntervals = std::vector<std::vector<Interval>>;

DimIntervals all_intervals(const DeviceMesh& mesh, std::span<const Placement> placements, const Shape& sizes,
                           std::span<const int64_t> coordinates) {
  DimIntervals result;
  for (size_t dim = 0; dim < sizes.size(); ++dim) result.push_back(dim_intervals(mesh, placements, int(dim), sizes[dim], coordinates));
  return result;
}

Shape dense_shape(const DimIntervals& intervals) {
  Shape shape;
  for (const auto& of_dim : intervals) shape.push_back(total(of_dim));
  return shape;
}

Interval ragged_range(const Placement& placement, int64_t coordinate) {
  const int64_t begin = std::accumulate(placement.sizes.begin(), placement.sizes.begin() + coordinate, int64_t{0});
  return {begin, begin + placement.sizes[coordinate]};
}

// Splits a block of the dense (not ragged) shard at interval borders and maps it to global boxes.
void map_block(const DimIntervals& intervals, const Box& block, const Shape& strides, int64_t shift, std::vector<ShardPiece>& pieces) {
  std::vector<ShardPiece> done{{Box{}, shift, strides}};
  for (size_t dim = 0; dim < intervals.size(); ++dim) {
    std::vector<ShardPiece> next;
    for (const ShardPiece& piece : done) {
      int64_t position = 0;
      for (const Interval& interval : intervals[dim]) {
        const int64_t begin = std::max(block.offsets[dim], position),
                      end = std::min(block.offsets[dim] + block.sizes[dim], position + interval.size());
        if (begin < end) {
          ShardPiece longer = piece;
          longer.box.offsets.push_back(interval.begin + begin - position);
          longer.box.sizes.push_back(end - begin);
          longer.offset += begin * strides[dim];
          next.push_back(std::move(longer));
        }
        position += interval.size();
      }
    }
    done = std::move(next);
  }
  pieces.insert(pieces.end(), done.begin(), done.end());
}

Shape normalized(const Shape& strides, const Shape& sizes) {
  return strides.empty() && !sizes.empty() ? contiguous_strides(sizes) : strides;
}

}  // namespace

Shape contiguous_strides(const Shape& sizes) {
  Shape strides(sizes.size(), 1);
  for (int dim = int(sizes.size()) - 2; dim >= 0; --dim) strides[dim] = strides[dim + 1] * std::max<int64_t>(sizes[dim + 1], 1);
  return strides;
}

std::vector<Interval> parts_of(const Placement& placement, int64_t size, int64_t count, int64_t index) {
  std::vector<Interval> parts;
  const int64_t blocks = placement.kind == Placement::Kind::kStridedShard ? placement.split : 1;
  for (int64_t block = 0; block < blocks; ++block) {
    const Interval outer = chunk_of(size, blocks, block), inner = chunk_of(outer.size(), count, index);
    append(parts, {outer.begin + inner.begin, outer.begin + inner.end});
  }
  return parts;
}

std::vector<Interval> dim_intervals(const DeviceMesh& mesh, std::span<const Placement> placements, int dim, int64_t size,
                                    std::span<const int64_t> coordinates) {
  std::vector<Interval> intervals;
  append(intervals, {0, size});
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_shard(dim)) continue;
    std::vector<Interval> next;
    for (const Interval& part : parts_of(placements[axis], total(intervals), mesh.size(int(axis)), coordinates[axis]))
      append_part(next, intervals, part);
    intervals = std::move(next);
  }
  return intervals;
}

std::vector<int64_t> coordinates_of(const DeviceMesh& mesh, int64_t index) {
  std::vector<int64_t> coordinates(mesh.num_axes());
  for (int axis = mesh.num_axes() - 1; axis >= 0; --axis) {
    coordinates[axis] = index % mesh.size(axis);
    index /= mesh.size(axis);
  }
  return coordinates;
}

std::vector<int64_t> own_coordinates(const DeviceMesh& mesh) {
  std::vector<int64_t> coordinates;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) coordinates.push_back(mesh.coordinate(axis));
  return coordinates;
}

std::optional<std::string> layout_problem(const DeviceMesh& mesh, std::span<const Placement> placements, const Shape& sizes) {
  const int dims = int(sizes.size()), ragged = ragged_axis(placements);
  for (const Placement& placement : placements)
    if (placement.is_shard() && (placement.dim < 0 || placement.dim >= dims))
      return str(placement.to_string(), " of a tensor with ", dims, " dims, shape ", sizes);
  if (ragged < 0) return std::nullopt;
  const Placement& placement = placements[ragged];
  if (ragged_axis(placements.subspan(ragged + 1)) >= 0) return str("two ragged axes (allowed: one)");
  if (placement.dim > dims || placement.dim == 0) return str(placement.to_string(), " of a tensor with ", dims, " dims, shape ", sizes);
  if (int64_t(placement.sizes.size()) != mesh.size(ragged))
    return str(placement.to_string(), " has ", placement.sizes.size(), " sizes for axis \"", mesh.axis_names()[ragged], "\" of ",
               mesh.size(ragged), " ranks");
  const int64_t sum = std::accumulate(placement.sizes.begin(), placement.sizes.end(), int64_t{0});
  // Every position on the other axes must leave the same number of elements.
  for (int64_t index = 0; index < mesh.size(); ++index) {
    const Shape dense = dense_shape(all_intervals(mesh, placements, sizes, coordinates_of(mesh, index)));
    const int64_t expected = product(std::span(dense).first(flattened_dims(placement, dense.size())));
    if (sum != expected) return str(placement.to_string(), " adds up to ", sum, ", not ", expected, ", for a local block of shape ", dense);
  }
  return std::nullopt;
}

Shape Spec::local_shape(std::span<const int64_t> coordinates) const {
  const Shape dense = dense_shape(all_intervals(mesh(), placements(), sizes_, coordinates));
  const int axis = ragged_axis(placements());
  if (axis < 0) return dense;
  Shape shape{placement(axis).sizes[coordinates[axis]]};
  shape.insert(shape.end(), dense.begin() + flattened_dims(placement(axis), dense.size()), dense.end());
  return shape;
}

std::vector<ShardPiece> Spec::pieces(std::span<const int64_t> coordinates) const {
  const DimIntervals intervals = all_intervals(mesh(), placements(), sizes_, coordinates);
  const Shape dense = dense_shape(intervals), strides = contiguous_strides(dense);
  const int axis = ragged_axis(placements());
  std::vector<ShardPiece> result;
  if (axis < 0) {
    map_block(intervals, Box{Shape(dense.size(), 0), dense}, strides, 0, result);
    return result;
  }
  const size_t flat = flattened_dims(placement(axis), dense.size());
  const int64_t rest = product(std::span(dense).subspan(flat));
  const Interval range = ragged_range(placement(axis), coordinates[axis]);
  for (const Box& block : boxes_of_range(dense, range.begin * rest, range.end * rest))
    map_block(intervals, block, strides, -range.begin * rest, result);
  return result;
}

const std::vector<ShardPiece>& Spec::pieces() const {
  std::call_once(pieces_once_, [this] {
    if (mesh().contains_this_rank()) pieces_ = pieces(own_coordinates(mesh()));
  });
  return pieces_;
}

std::vector<Box> Spec::boxes() const {
  std::vector<Box> result;
  for (const ShardPiece& piece : pieces()) result.push_back(piece.box);
  return result;
}

std::string Spec::to_string() const { return str(c10::toString(dtype_), " ", sizes_, " on ", layout_.to_string()); }

class SpecTable {
 public:
  using Key = std::tuple<const void*, std::vector<Shape>, Shape, Shape, int, int>;

  const Spec* find_or_make(const Layout& layout, const Shape& sizes, at::ScalarType dtype, const Shape& strides, c10::Device device) {
    Key key{layout.mesh().identity(), words_of(layout.placements()), sizes, strides, int(dtype), int(device.type()) * 256 + device.index()};
    std::lock_guard lock(mutex_);
    auto& slot = specs_[std::move(key)];
    if (!slot) slot = make(layout, sizes, dtype, strides, device);
    return slot.get();
  }

 private:
  static std::vector<Shape> words_of(const std::vector<Placement>& placements) {
    std::vector<Shape> words;
    for (const Placement& placement : placements) {
      Shape& of_axis = words.emplace_back(
          Shape{int64_t(placement.kind), placement.is_partial() ? int64_t(placement.reduce) : 0, placement.dim, placement.split});
      of_axis.insert(of_axis.end(), placement.sizes.begin(), placement.sizes.end());
    }
    return words;
  }

  static std::unique_ptr<Spec> make(const Layout& layout, const Shape& sizes, at::ScalarType dtype, const Shape& strides,
                                    c10::Device device) {
    auto spec = std::make_unique<Spec>();
    spec->layout_ = layout;
    spec->sizes_ = sizes;
    spec->strides_ = strides;
    spec->dtype_ = dtype;
    spec->device_ = device;
    spec->has_partial_ = layout.has_partial();
    spec->local_shape_ = layout.mesh().contains_this_rank() ? spec->local_shape(own_coordinates(layout.mesh())) : Shape{0};
    DTensorImpl::prepare(*spec, spec->wrapper_);
    return spec;
  }

  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Spec>> specs_;
};

const Spec* intern_spec(const Layout& layout, const Shape& sizes, at::ScalarType dtype, const Shape& strides, c10::Device device) {
  static SpecTable& table = *new SpecTable;  // Specs outlive every thread and static
  const int dims = int(sizes.size());
  Layout canonical = layout;
  for (int axis = 0; axis < int(layout.placements().size()); ++axis) {
    Placement placement = layout.placements()[axis];
    if (placement.is_shard() && placement.dim < 0) placement.dim += dims;
    if (placement.is_ragged() && placement.dim == dims) placement.dim = -1;
    if (placement.kind == Placement::Kind::kStridedShard && placement.split == 1) placement = shard(placement.dim);
    if (!(placement == layout.placements()[axis])) canonical = canonical.with(axis, placement);
  }
  if (auto problem = layout_problem(canonical.mesh(), canonical.placements(), sizes))
    throw LayoutError("layout " + layout.to_string() + ": " + *problem);
  return table.find_or_make(canonical, sizes, dtype, normalized(strides, sizes), device);
}

}  // namespace hyper_parallel
