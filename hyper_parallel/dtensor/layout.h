// SPDX-License-Identifier: Apache-2.0
// Layout: how a tensor lies on a mesh, one placement per mesh axis. Two notations for one thing:
//
//   Layout a(mesh, {replicate(), shard(1)});   // axis by axis
//   Layout b = Layout(mesh)("None", "tp");     // dim by dim: which axis splits it; "" or "None" = not split
//   Layout c = Layout(mesh)("dp,tp", "");      // two axes on one dim, outer first (the mesh's order)
//
// Axes that are not named replicate. Errors: LayoutError.
#pragma once
#include <string>
#include <vector>

#include "hyper_parallel/dtensor/device_mesh.h"
#include "hyper_parallel/dtensor/placement.h"

namespace hyper_parallel {

class Layout {
 public:
  Layout() = default;                // invalid until assigned
  explicit Layout(DeviceMesh mesh);  // replicated
  Layout(DeviceMesh mesh, std::vector<Placement> placements);

  template <class... Axes>
  Layout operator()(const Axes&... axes_of_dims) const {
    return by_dims({std::string(axes_of_dims)...});
  }
  Layout by_dims(const std::vector<std::string>& axes_of_dims) const;

  const DeviceMesh& mesh() const { return mesh_; }
  const std::vector<Placement>& placements() const { return placements_; }
  Layout with(int axis, Placement placement) const;
  bool has_partial() const;
  bool operator==(const Layout& other) const { return mesh_ == other.mesh_ && placements_ == other.placements_; }
  std::string to_string() const;  // "DeviceMesh(dp=2, tp=2) [S(0), R]"

 private:
  DeviceMesh mesh_;
  std::vector<Placement> placements_;
};

}  // namespace hyper_parallel
