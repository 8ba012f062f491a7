// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/detail/cross_mesh.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <memory>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/dtensor/detail/redistribute_steps.h"

namespace hyper_parallel::detail {
namespace {

int64_t index_of(const std::vector<int>& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin(); }

// The copy of the source mesh from which `taker` takes.
std::vector<int> source_block(const DeviceMesh& mesh, int taker) {
  std::vector<int> block = mesh.block_of(taker);
  for (size_t rank = 0; block.empty(); ++rank) block = mesh.block_of(mesh.outer_group().ranks()[rank]);
  return block;
}

// Axes that don't shard the tensor hold copies of it: one position of each gives to a taker.
bool gives_to(const Spec* from, std::span<const int64_t> giver, std::span<const int64_t> wanted) {
  for (size_t axis = 0; axis < giver.size(); ++axis) {
    const Placement& placement = from->placement(int(axis));
    if (!placement.is_shard() && !placement.is_ragged() && giver[axis] != wanted[axis]) return false;
  }
  return true;
}

}  // namespace

CrossMeshPlan::CrossMeshPlan(const Spec* from, const Spec* to) : from_(from), to_(to) {
  const auto fail = [&](const std::string& why) {
    throw LayoutError(str("redistribute from ", from->to_string(), " to ", to->to_string(), ": ", why));
  };
  const ProcessGroup& group = from->mesh().outer_group();
  if (!(group == to->mesh().outer_group())) fail("the meshes are not made of one group's ranks");
  if (from->sizes() != to->sizes() || from->dtype() != to->dtype()) fail("the shapes or dtypes differ");
  if (from->has_partial() || to->has_partial()) fail("between meshes, neither may be Partial");
  const int here = group.ranks()[group.rank()];
  gives_.resize(size_t(group.size()));
  takes_.resize(size_t(group.size()));
  for (int peer = 0; peer < group.size(); ++peer) {
    plan_transfer(here, group.ranks()[peer], &gives_[peer], nullptr);
    plan_transfer(group.ranks()[peer], here, nullptr, &takes_[peer]);
  }
}

// World ranks. Both sides list the shared boxes in one order.
void CrossMeshPlan::plan_transfer(int giver, int taker, Blocks* gives, Blocks* takes) const {
  const std::vector<int> sources = source_block(from_->mesh(), taker), targets = to_->mesh().block_of(taker);
  const int64_t giving = index_of(sources, giver), taking = index_of(targets, taker), own = index_of(sources, taker);
  if (giving == int64_t(sources.size()) || targets.empty()) return;
  const auto wanted = coordinates_of(from_->mesh(), own < int64_t(sources.size()) ? own : taking % int64_t(sources.size()));
  const auto position = coordinates_of(from_->mesh(), giving);
  if (!gives_to(from_, position, wanted)) return;
  const auto give = from_->pieces(position), take = to_->pieces(coordinates_of(to_->mesh(), taking));
  for (const ShardPiece& source : give) {
    for (const ShardPiece& target : take) {
      const auto box = intersect(source.box, target.box);
      if (!box) continue;
      if (gives != nullptr) gives->push_back({source, *box});
      if (takes != nullptr) takes->push_back({target, *box});
    }
  }
}

at::Tensor CrossMeshPlan::run(const at::Tensor& local_in) const {
  const at::Tensor local = local_in.contiguous();
  std::vector<at::Tensor> inputs, outputs;
  for (size_t peer = 0; peer < gives_.size(); ++peer) {
    std::vector<at::Tensor> blocks{at::empty({0}, local.options())};
    for (const Block& block : gives_[peer]) blocks.push_back(block_of(local, block.piece, block.box).reshape({-1}));
    inputs.push_back(at::cat(blocks, 0));
    int64_t numel = 0;
    for (const Block& block : takes_[peer]) numel += block.box.numel();
    outputs.push_back(at::empty({numel}, local.options()));
  }
  from_->mesh().outer_group().all_to_all(outputs, inputs).wait();
  const at::Tensor result = at::empty(to_->local_shape(), local.options());
  for (size_t peer = 0; peer < takes_.size(); ++peer) {
    int64_t position = 0;
    for (const Block& block : takes_[peer]) {
      block_of(result, block.piece, block.box).copy_(outputs[peer].narrow(0, position, block.box.numel()).view(block.box.sizes));
      position += block.box.numel();
    }
  }
  return result;
}

const CrossMeshPlan& cross_mesh_plan(const Spec* from, const Spec* to) {
  thread_local std::map<std::pair<const Spec*, const Spec*>, std::unique_ptr<CrossMeshPlan>> plans;
  auto& plan = plans[{from, to}];
  if (!plan) plan = std::make_unique<CrossMeshPlan>(from, to);
  return *plan;
}

}  // namespace hyper_parallel::detail
