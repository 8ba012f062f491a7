// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/device_mesh.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {

// Coordinates and `members` are row-major over `shape`; `members` are ranks of the root group. Of a mesh that this rank is not in, there
// are neither groups (but the outer one) nor coordinates.
struct DeviceMesh::Impl {
  std::shared_ptr<const Impl> root;  // null in the root itself
  std::vector<int> root_axes;        // of a slice
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  std::vector<int64_t> coordinates;
  std::vector<int> members, world_ranks;
  mutable ProcessGroup root_group, whole_group, outer_group;
  mutable std::vector<ProcessGroup> groups;             // one per axis
  mutable std::map<std::string, DeviceMesh> flattened;  // in the root only
};

namespace {

int64_t product(std::span<const int64_t> sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }

// One partition of the root's ranks into equal grids: `offsets` are the members of a block relative to its first rank.
struct Partition {
  std::vector<int> offsets;
  int first = 0;  // of this rank's block
};

Partition partition_of(std::span<const int64_t> root_shape, std::span<const int> axes, int rank) {
  std::vector<int64_t> strides(root_shape.size(), 1);
  for (int axis = int(root_shape.size()) - 2; axis >= 0; --axis) strides[axis] = strides[axis + 1] * root_shape[axis + 1];
  Partition partition{{0}, rank};
  for (int axis : axes) {
    partition.first -= int(rank / strides[axis] % root_shape[axis] * strides[axis]);
    std::vector<int> next;
    for (int offset : partition.offsets)
      for (int64_t index = 0; index < root_shape[axis]; ++index) next.push_back(int(offset + index * strides[axis]));
    partition.offsets = std::move(next);
  }
  return partition;
}

}  // namespace

// What one rank's thread has made: equal meshes are one object, equal rank lists one group. When the thread ends the groups are let go,
// while the shapes stay for Specs that outlive it.
class MeshRegistry {
 public:
  static MeshRegistry& of_this_thread() {
    thread_local MeshRegistry registry;
    return registry;
  }

  ~MeshRegistry() {
    for (auto& [key, mesh] : meshes_) {
      mesh->root_group = mesh->whole_group = mesh->outer_group = ProcessGroup();
      for (auto& group : mesh->groups) group = ProcessGroup();
      mesh->flattened.clear();
    }
  }

  // Collective over `root` when the group is new.
  ProcessGroup group(const ProcessGroup& root, const Partition& partition, const std::string& name) {
    if (int(partition.offsets.size()) == root.size()) return root;
    auto& group = groups_[{&root.backend(), partition.first, partition.offsets}];
    if (!group) group = root.split(partition.first, root.rank(), name);
    return group;
  }

  std::shared_ptr<const DeviceMesh::Impl> mesh(std::shared_ptr<DeviceMesh::Impl> made) {
    auto& kept = meshes_[key_of(*made)];
    if (!kept) kept = std::move(made);
    return kept;
  }

  std::shared_ptr<const DeviceMesh::Impl> find(const DeviceMesh::Impl& like) const {
    const auto found = meshes_.find(key_of(like));
    return found == meshes_.end() ? nullptr : found->second;
  }

 private:
  using MeshKey = std::tuple<const Backend*, std::vector<int>, std::vector<int64_t>, std::vector<std::string>>;
  static MeshKey key_of(const DeviceMesh::Impl& mesh) { return {&mesh.outer_group.backend(), mesh.world_ranks, mesh.shape, mesh.names}; }
  std::map<MeshKey, std::shared_ptr<const DeviceMesh::Impl>> meshes_;
  std::map<std::tuple<const Backend*, int, std::vector<int>>, ProcessGroup> groups_;
};

namespace {

void check_names(std::span<const int64_t> shape, std::span<const std::string> names) {
  if (shape.size() != names.size())
    throw LayoutError(str("mesh shape ", shape, " has ", shape.size(), " axes, but ", names, " names ", names.size()));
  for (size_t axis = 0; axis < names.size(); ++axis) {
    if (shape[axis] < 1) throw LayoutError(str("mesh axis \"", names[axis], "\" has size ", shape[axis], " (allowed: 1 or more)"));
    if (names[axis].empty()) throw LayoutError(str("mesh axis ", axis, " has an empty name"));
    if (std::count(names.begin(), names.end(), names[axis]) > 1)
      throw LayoutError(str("mesh axis \"", names[axis], "\" appears twice in ", names));
  }
}

}  // namespace

DeviceMesh::DeviceMesh(const ProcessGroup& group, std::vector<int64_t> shape, std::vector<std::string> axis_names) {
  check_names(shape, axis_names);
  if (product(shape) != group.size())
    throw LayoutError(str("mesh shape ", shape, " needs ", product(shape), " ranks, the group has ", group.size()));
  auto made = std::make_shared<Impl>();
  made->outer_group = group;
  made->shape = std::move(shape);
  made->names = std::move(axis_names);
  made->world_ranks.assign(group.ranks().begin(), group.ranks().end());
  join_groups(*made, group);
  impl_ = MeshRegistry::of_this_thread().mesh(std::move(made));
}

DeviceMesh::DeviceMesh(const ProcessGroup& group, std::span<const int> ranks, std::vector<int64_t> shape,
                       std::vector<std::string> axis_names) {
  check_names(shape, axis_names);
  if (product(shape) != int64_t(ranks.size()))
    throw LayoutError(str("mesh shape ", shape, " needs ", product(shape), " ranks, ", ranks.size(), " are given"));
  auto made = std::make_shared<Impl>();
  made->outer_group = group;
  made->shape = std::move(shape);
  made->names = std::move(axis_names);
  for (int rank : ranks) {
    if (rank < 0 || rank >= group.size())
      throw LayoutError(str("mesh ranks ", ranks, ": ", rank, " is not in the group (allowed: 0 to ", group.size() - 1, ")"));
    made->world_ranks.push_back(group.ranks()[rank]);
  }
  impl_ = MeshRegistry::of_this_thread().find(*made);
  if (impl_) return;
  if (const ProcessGroup members = group.subgroup(ranks, join(made->names, "_")))
    join_groups(*made, members);
  else
    made->members.resize(ranks.size());
  impl_ = MeshRegistry::of_this_thread().mesh(std::move(made));
}

// This rank's place in a mesh of all ranks of `group`, and its groups. Collective over `group`.
void DeviceMesh::join_groups(Impl& mesh, const ProcessGroup& group) {
  mesh.root_group = mesh.whole_group = group;
  mesh.members.resize(group.size());
  std::iota(mesh.members.begin(), mesh.members.end(), 0);
  int64_t stride = group.size();
  for (int axis = 0; axis < int(mesh.shape.size()); ++axis) {
    stride /= mesh.shape[axis];
    mesh.coordinates.push_back(group.rank() / stride % mesh.shape[axis]);
    const int axes[] = {axis};
    mesh.groups.push_back(MeshRegistry::of_this_thread().group(group, partition_of(mesh.shape, axes, group.rank()), mesh.names[axis]));
  }
}

bool DeviceMesh::contains_this_rank() const { return impl_->coordinates.size() == impl_->shape.size(); }
const ProcessGroup& DeviceMesh::outer_group() const { return impl_->outer_group; }

std::vector<int> DeviceMesh::block_of(int rank) const {
  const Impl& root = impl_->root ? *impl_->root : *impl_;
  const auto found = std::find(root.world_ranks.begin(), root.world_ranks.end(), rank);
  if (found == root.world_ranks.end()) return {};
  if (!impl_->root) return impl_->world_ranks;
  const Partition partition = partition_of(root.shape, impl_->root_axes, int(found - root.world_ranks.begin()));
  std::vector<int> ranks;
  for (int offset : partition.offsets) ranks.push_back(root.world_ranks[partition.first + offset]);
  return ranks;
}

int DeviceMesh::num_axes() const { return int(impl_->shape.size()); }
std::span<const int64_t> DeviceMesh::shape() const { return impl_->shape; }
std::span<const std::string> DeviceMesh::axis_names() const { return impl_->names; }
int64_t DeviceMesh::size() const { return int64_t(impl_->members.size()); }
int64_t DeviceMesh::size(int axis) const { return impl_->shape.at(axis); }
int64_t DeviceMesh::coordinate(int axis) const {
  check_contains_this_rank();
  return impl_->coordinates.at(axis);
}
std::span<const int> DeviceMesh::ranks() const { return impl_->world_ranks; }

bool DeviceMesh::has_axis(const std::string& name) const {
  return std::find(impl_->names.begin(), impl_->names.end(), name) != impl_->names.end();
}

int DeviceMesh::axis(const std::string& name) const {
  for (size_t axis = 0; axis < impl_->names.size(); ++axis)
    if (impl_->names[axis] == name) return int(axis);
  throw LayoutError(str("mesh has no axis \"", name, "\" (known: ", join(impl_->names, ", "), ")"));
}

DeviceMesh DeviceMesh::operator[](const std::string& axis_name) const {
  const auto& root = impl_->root ? *impl_->root : *impl_;
  if (!has_axis(axis_name))
    if (auto found = root.flattened.find(axis_name); found != root.flattened.end()) return found->second;
  return slice(std::span(&axis_name, 1));
}

DeviceMesh DeviceMesh::slice(std::span<const std::string> axis_names) const {
  std::vector<int> axes;
  for (const auto& name : axis_names) axes.push_back(axis(name));
  if (axes.empty() || !std::is_sorted(axes.begin(), axes.end()) || std::adjacent_find(axes.begin(), axes.end()) != axes.end())
    throw LayoutError(str("mesh slice ", axis_names, " must name axes once and in the mesh's order: ", impl_->names));
  if (int(axes.size()) == num_axes()) return *this;
  check_contains_this_rank();
  const int here =
      int(std::find(impl_->world_ranks.begin(), impl_->world_ranks.end(), impl_->root_group.ranks()[impl_->root_group.rank()]) -
          impl_->world_ranks.begin());
  const Partition partition = partition_of(impl_->shape, axes, here);
  auto made = std::make_shared<Impl>();
  made->root = impl_->root ? impl_->root : impl_;
  made->root_group = impl_->root_group;
  made->outer_group = impl_->outer_group;
  for (int axis : axes) {
    made->root_axes.push_back(impl_->root ? impl_->root_axes[axis] : axis);
    made->shape.push_back(impl_->shape[axis]);
    made->names.push_back(impl_->names[axis]);
    made->coordinates.push_back(impl_->coordinates[axis]);
    made->groups.push_back(impl_->groups[axis]);
  }
  for (int offset : partition.offsets) {
    made->members.push_back(impl_->members[partition.first + offset]);
    made->world_ranks.push_back(impl_->world_ranks[partition.first + offset]);
  }
  DeviceMesh result;
  result.impl_ = MeshRegistry::of_this_thread().mesh(std::move(made));
  return result;
}

DeviceMesh DeviceMesh::flatten(std::span<const std::string> axis_names, const std::string& name) const {
  const auto root = impl_->root ? impl_->root : impl_;
  check_contains_this_rank();
  const DeviceMesh part = slice(axis_names);
  const int first = axis(axis_names.front());
  if (axis(axis_names.back()) - first + 1 != int(axis_names.size()))
    throw LayoutError(str("mesh flatten ", axis_names, ": the axes are not adjacent in ", impl_->names));
  if (auto found = root->flattened.find(name); found != root->flattened.end()) {
    if (found->second.impl_->members == part.impl_->members) return found->second;
    throw LayoutError(str("mesh flatten: \"", name, "\" already names other axes"));
  }
  if (has_axis(name) && axis_names.size() > 1)
    throw LayoutError(str("mesh flatten: \"", name, "\" is an axis of the mesh already: ", impl_->names));
  auto made = std::make_shared<Impl>(*part.impl_);
  made->root = root;
  if (made->root_axes.empty())
    made->root_axes.resize(size_t(part.num_axes())), std::iota(made->root_axes.begin(), made->root_axes.end(), 0);
  made->shape = {part.size()};
  made->names = {name};
  made->coordinates = {std::find(made->world_ranks.begin(), made->world_ranks.end(), made->root_group.ranks()[made->root_group.rank()]) -
                       made->world_ranks.begin()};
  made->groups = {part.group()};
  made->flattened.clear();
  DeviceMesh result;
  result.impl_ = MeshRegistry::of_this_thread().mesh(std::move(made));
  if (!(axis_names.size() == 1 && axis_names[0] == name)) root->flattened.emplace(name, result);
  return result;
}

void DeviceMesh::check_contains_this_rank() const {
  if (!contains_this_rank()) throw LayoutError(str(to_string(), " of ranks ", ranks(), ": this rank is not in it"));
}

const ProcessGroup& DeviceMesh::group(int axis) const {
  check_contains_this_rank();
  HYPER_PARALLEL_CHECK(impl_->groups.at(axis), to_string(), " is used after the thread of its rank has ended");
  return impl_->groups[axis];
}

const ProcessGroup& DeviceMesh::group(const std::string& axis_name) const {
  return has_axis(axis_name) ? group(axis(axis_name)) : (*this)[axis_name].group(0);
}

const ProcessGroup& DeviceMesh::group() const {
  if (num_axes() == 1) return group(0);
  check_contains_this_rank();
  HYPER_PARALLEL_CHECK(impl_->root_group, to_string(), " is used after the thread of its rank has ended");
  if (!impl_->whole_group) {
    Partition partition{impl_->members, impl_->members.front()};
    for (int& member : partition.offsets) member -= partition.first;
    impl_->whole_group = MeshRegistry::of_this_thread().group(impl_->root_group, partition, join(impl_->names, "_"));
  }
  return impl_->whole_group;
}

int DeviceMesh::local_rank(const std::string& axis_name) const { return group(axis_name).rank(); }

bool DeviceMesh::operator==(const DeviceMesh& other) const { return impl_ == other.impl_; }
const void* DeviceMesh::identity() const { return impl_.get(); }

std::string DeviceMesh::to_string() const {
  if (!impl_) return "DeviceMesh()";
  std::vector<std::string> parts;
  for (size_t axis = 0; axis < impl_->shape.size(); ++axis) parts.push_back(str(impl_->names[axis], "=", impl_->shape[axis]));
  return str("DeviceMesh(", join(parts, ", "), ")");
}

}  // namespace hyper_parallel
