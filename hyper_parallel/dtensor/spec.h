// SPDX-License-Identifier: Apache-2.0
// Spec: everything about a sharded tensor but its data: layout, global shape and strides, dtype, device. Immutable and interned: equal
// Specs are one object, so they compare by pointer. Specs live for ever; they are made on cache misses only.
//
//   const Spec* spec = intern_spec(Layout(mesh)("fsdp"), {10, 4}, at::kFloat);
//   spec->local_shape();          // [5, 4] on each of two ranks
//   spec->boxes();                // where that shard lies in the global tensor
//
// Errors: LayoutError for a dim that the tensor lacks, and for ragged sizes that don't add up.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/SizesAndStrides.h>
#include <c10/util/typeid.h>

#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hyper_parallel/dtensor/box.h"
#include "hyper_parallel/dtensor/layout.h"

namespace hyper_parallel {

using Shape = std::vector<int64_t>;

// A block of a shard: `box` in the global tensor, and where its elements lie in the contiguous local tensor.
struct ShardPiece {
  Box box;
  int64_t offset = 0;  // in elements
  Shape strides;       // of the box's dims in the local tensor
};

// What a wrapper tensor copies from its Spec instead of computing it again.
struct PreparedWrapper {
  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  c10::impl::SizesAndStrides sizes_and_strides;
  int64_t numel = 0;
  bool plain_contiguous = false;  // the flags have TensorImpl's initial values
  bool flags[6] = {};
};

class Spec {
 public:
  const Layout& layout() const { return layout_; }
  const DeviceMesh& mesh() const { return layout_.mesh(); }
  const std::vector<Placement>& placements() const { return layout_.placements(); }
  const Placement& placement(int axis) const { return layout_.placements()[axis]; }
  const Shape& sizes() const { return sizes_; }
  const Shape& strides() const { return strides_; }
  int dim() const { return int(sizes_.size()); }
  int64_t numel() const { return wrapper_.numel; }
  at::ScalarType dtype() const { return dtype_; }
  c10::Device device() const { return device_; }
  bool has_partial() const { return has_partial_; }

  const Shape& local_shape() const { return local_shape_; }  // of this rank; [0] if the mesh doesn't contain it
  Shape local_shape(std::span<const int64_t> coordinates) const;
  std::vector<ShardPiece> pieces(std::span<const int64_t> coordinates) const;  // disjoint, covering the shard
  const std::vector<ShardPiece>& pieces() const;                               // of this rank; found once
  std::vector<Box> boxes() const;                                              // of this rank

  const PreparedWrapper& wrapper() const { return wrapper_; }
  std::string to_string() const;  // f32 [10, 4] on DeviceMesh(fsdp=2) [S(0)]

 private:
  friend class SpecTable;
  Layout layout_;
  Shape sizes_, strides_, local_shape_;
  at::ScalarType dtype_ = at::kFloat;
  c10::Device device_ = c10::kCPU;
  bool has_partial_ = false;
  PreparedWrapper wrapper_;
  mutable std::once_flag pieces_once_;
  mutable std::vector<ShardPiece> pieces_;
};

// Negative dims count from the end. `strides` empty: contiguous.
const Spec* intern_spec(const Layout& layout, const Shape& sizes, at::ScalarType dtype, const Shape& strides = {},
                        c10::Device device = c10::kCPU);

// Why the placements don't fit the shape, or nullopt.
std::optional<std::string> layout_problem(const DeviceMesh& mesh, std::span<const Placement> placements, const Shape& sizes);
// The elements of dim `dim` that the rank at `coordinates` holds, in local order, of a tensor without its ragged axis.
std::vector<Interval> dim_intervals(const DeviceMesh& mesh, std::span<const Placement> placements, int dim, int64_t size,
                                    std::span<const int64_t> coordinates);
// The part of [0, size) that piece `index` of `count` gets under a Shard or StridedShard placement.
std::vector<Interval> parts_of(const Placement& placement, int64_t size, int64_t count, int64_t index);
std::vector<int64_t> coordinates_of(const DeviceMesh& mesh, int64_t index);  // of the mesh's index-th rank
std::vector<int64_t> own_coordinates(const DeviceMesh& mesh);
Shape contiguous_strides(const Shape& sizes);

}  // namespace hyper_parallel
