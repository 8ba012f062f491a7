// SPDX-License-Identifier: Apache-2.0
// DeviceMesh: an n-d grid of ranks with named axes. `axis` always means a mesh axis, `dim` a tensor dimension.
//
//   DeviceMesh mesh(world.group(), {2, 4}, {"replicate", "fsdp"});   // rank = 4 * replicate + fsdp
//   mesh["fsdp"].group().all_reduce(x).wait();
//   DeviceMesh all = mesh.flatten({"replicate", "fsdp"}, "dp");
//   DeviceMesh last_two(world.group(), std::array{6, 7}, {2}, {"tp"});   // on every rank; on ranks 0-5 it only describes
//
// A value handle; equal meshes (same group, ranks, shape, names) compare equal. Sub-groups are made when the mesh is made, in axis order on
// every rank, and cached per rank: making an equal mesh again costs nothing. Construction, flatten, and the first group() of an n-d slice
// are collective over the root's group. The groups live until the rank's thread ends. Errors: LayoutError.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/process_group.h"

namespace hyper_parallel {

class DeviceMesh {
 public:
  DeviceMesh() = default;  // invalid until assigned
  // The product of `shape` must be group.size().
  DeviceMesh(const ProcessGroup& group, std::vector<int64_t> shape, std::vector<std::string> axis_names);
  // Over some ranks of the group, row-major. Collective over the whole group. On the others contains_this_rank() is false: their shards are
  // empty, ops on them compute nothing, and group() and coordinate() throw.
  DeviceMesh(const ProcessGroup& group, std::span<const int> ranks, std::vector<int64_t> shape, std::vector<std::string> axis_names);

  bool contains_this_rank() const;
  // World ranks of the mesh that holds world rank `rank`: of a slice each rank has its own; empty if none holds it.
  std::vector<int> block_of(int rank) const;
  // The group that made the mesh, or the larger one whose ranks it is made of. Meshes with one outer group can exchange tensors.
  const ProcessGroup& outer_group() const;
  int num_axes() const;
  std::span<const int64_t> shape() const;
  std::span<const std::string> axis_names() const;
  int64_t size() const;  // product of shape
  int64_t size(int axis) const;
  int64_t coordinate(int axis) const;       // of this rank
  int axis(const std::string& name) const;  // LayoutError lists the known names
  bool has_axis(const std::string& name) const;
  std::span<const int> ranks() const;  // row-major, world ranks

  DeviceMesh operator[](const std::string& axis_name) const;        // 1-d slice that holds this rank
  DeviceMesh slice(std::span<const std::string> axis_names) const;  // n-d slice, in mesh order
  // One axis of the product of adjacent axes, row-major, made once and cached: later mesh[name] finds it.
  DeviceMesh flatten(std::span<const std::string> axis_names, const std::string& name) const;

  const ProcessGroup& group(int axis) const;
  const ProcessGroup& group(const std::string& axis_name) const;
  const ProcessGroup& group() const;  // a 1-d mesh's only group, else that of all its ranks
  int local_rank(const std::string& axis_name) const;

  bool operator==(const DeviceMesh& other) const;
  std::string to_string() const;  // "DeviceMesh(replicate=2, fsdp=4)"
  const void* identity() const;   // equal meshes of one rank share it: the interned key used by Spec

 private:
  friend class MeshRegistry;  // device_mesh.cpp: interns what a rank's thread makes
  struct Impl;
  static void join_groups(Impl& mesh, const ProcessGroup& group);
  void check_contains_this_rank() const;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace hyper_parallel
