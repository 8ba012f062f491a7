// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/layout.h"

#include <algorithm>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {

Layout::Layout(DeviceMesh mesh) : mesh_(std::move(mesh)), placements_(mesh_.num_axes()) {}

Layout::Layout(DeviceMesh mesh, std::vector<Placement> placements) : mesh_(std::move(mesh)), placements_(std::move(placements)) {
  if (int(placements_.size()) != mesh_.num_axes())
    throw LayoutError(str("layout: ", placements_.size(), " placements ", hyper_parallel::to_string(placements_), " for the ",
                          mesh_.num_axes(), " axes of ", mesh_.to_string()));
}

Layout Layout::by_dims(const std::vector<std::string>& axes_of_dims) const {
  Layout result(mesh_);
  for (size_t dim = 0; dim < axes_of_dims.size(); ++dim) {
    if (axes_of_dims[dim].empty() || axes_of_dims[dim] == "None") continue;
    int previous = -1;
    for (const auto& name : split(axes_of_dims[dim], ',')) {
      const int axis = mesh_.axis(name);
      if (axis < previous)
        throw LayoutError(str("layout: dim ", dim, " names axes \"", axes_of_dims[dim], "\" against the mesh's order ", mesh_.axis_names(),
                              "; outer axes come first (see strided_shard)"));
      if (!result.placements_[axis].is_replicate()) throw LayoutError(str("layout: axis \"", name, "\" splits two dims of ", axes_of_dims));
      result.placements_[axis] = shard(int(dim));
      previous = axis;
    }
  }
  return result;
}

Layout Layout::with(int axis, Placement placement) const {
  Layout result = *this;
  result.placements_.at(axis) = std::move(placement);
  return result;
}

bool Layout::has_partial() const {
  return std::any_of(placements_.begin(), placements_.end(), [](const Placement& placement) { return placement.is_partial(); });
}

std::string Layout::to_string() const { return str(mesh_.to_string(), " ", hyper_parallel::to_string(placements_)); }

}  // namespace hyper_parallel
