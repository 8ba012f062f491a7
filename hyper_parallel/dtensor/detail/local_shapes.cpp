// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/detail/local_shapes.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::detail {
namespace {

constexpr size_t kMaxDims = 16;

// Each rank's shape over one axis.
std::vector<Shape> gathered(const ProcessGroup& group, const Shape& shape) {
  if (shape.size() > kMaxDims) throw LayoutError(str("a local tensor of ", shape.size(), " dims (allowed: up to ", kMaxDims, ")"));
  const at::Tensor mine = at::empty({int64_t(kMaxDims) + 1}, at::kLong), all = at::empty({group.size(), int64_t(kMaxDims) + 1}, at::kLong);
  int64_t* const words = mine.mutable_data_ptr<int64_t>();
  std::fill_n(words, kMaxDims + 1, 0);
  words[0] = int64_t(shape.size());
  std::copy(shape.begin(), shape.end(), words + 1);
  group.all_gather(all, mine).wait();
  std::vector<Shape> shapes;
  for (int rank = 0; rank < group.size(); ++rank) {
    const int64_t* const row = all.const_data_ptr<int64_t>() + rank * int64_t(kMaxDims + 1);
    shapes.emplace_back(row + 1, row + 1 + row[0]);
  }
  return shapes;
}

// `problem` of this rank, "" if none: throws on all ranks if any has one.
void agree(const DeviceMesh& mesh, const std::string& problem) {
  const at::Tensor fits = at::empty({1}, at::kLong);
  *fits.mutable_data_ptr<int64_t>() = problem.empty() ? 1 : 0;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) mesh.group(axis).all_reduce(fits, ReduceOp::kMin).wait();
  if (!problem.empty()) throw LayoutError(problem);
  if (*fits.const_data_ptr<int64_t>() == 0)
    throw LayoutError("from_local: another rank's local tensor doesn't fit the layout (see its error)");
}

std::string describe(const std::vector<Shape>& shapes, const ProcessGroup& group) {
  std::vector<std::string> parts;
  for (size_t rank = 0; rank < shapes.size(); ++rank) parts.push_back(str("rank ", group.ranks()[rank], " has ", shapes[rank]));
  return join(parts, ", ");
}

}  // namespace

Shape sizes_from_ranks(const at::Tensor& local, const Layout& layout) {
  const DeviceMesh& mesh = layout.mesh();
  for (const Placement& placement : layout.placements())
    if (placement.is_ragged()) throw LayoutError("from_uneven_local under " + layout.to_string() + ": pass the sizes to from_local");
  Shape sizes = local.sizes().vec();
  std::string problem;
  // Inner axes first: what they share out of one dim is a shard of the outer ones.
  for (int axis = mesh.num_axes() - 1; axis >= 0; --axis) {
    const Placement& placement = layout.placements()[axis];
    const std::vector<Shape> shapes = gathered(mesh.group(axis), sizes);
    const int64_t dim = !placement.is_shard() ? -1 : placement.dim < 0 ? placement.dim + local.dim() : placement.dim;
    bool alike = dim < local.dim() && (dim >= 0 || !placement.is_shard());
    int64_t sum = 0;
    for (Shape shape : shapes) {
      alike = alike && shape.size() == sizes.size();
      if (!alike) break;
      if (dim >= 0) sum += std::exchange(shape[dim], sizes[dim]);
      alike = shape == sizes;
    }
    if (!alike && problem.empty())
      problem = str("from_uneven_local under ", layout.to_string(), ", axis \"", mesh.axis_names()[axis],
                    "\": ", describe(shapes, mesh.group(axis)), "; no ", placement.to_string(), " of one tensor");
    if (alike && dim >= 0) sizes[dim] = sum;
  }
  if (problem.empty()) {
    const Spec* spec = intern_spec(layout, sizes, local.scalar_type(), {}, local.device());
    if (spec->local_shape() != local.sizes())
      problem = str("from_uneven_local: this rank's local tensor has shape ", bracketed(local.sizes()), ", but ", spec->to_string(),
                    " gives it ", spec->local_shape(), " (for other sizes: a RaggedShard)");
  }
  agree(mesh, problem);
  return sizes;
}

void check_local_shapes(const at::Tensor& local, const Spec* spec) {
  const DeviceMesh& mesh = spec->mesh();
  std::string problem;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const std::vector<Shape> globals = gathered(mesh.group(axis), spec->sizes()), locals = gathered(mesh.group(axis), local.sizes().vec());
    auto coordinates = own_coordinates(mesh);
    for (int64_t index = 0; index < mesh.size(axis) && problem.empty(); ++index) {
      coordinates[axis] = index;
      const int rank = mesh.group(axis).ranks()[index];
      if (globals[index] != spec->sizes())
        problem = str("from_local: rank ", rank, " means a tensor of shape ", globals[index], ", this rank ", spec->to_string());
      else if (locals[index] != spec->local_shape(coordinates))
        problem = str("from_local: rank ", rank, "'s local tensor has shape ", locals[index], ", but ", spec->to_string(), " gives it ",
                      spec->local_shape(coordinates));
    }
  }
  agree(mesh, problem);
}

}  // namespace hyper_parallel::detail
