// SPDX-License-Identifier: Apache-2.0
// Moves a sharded tensor between meshes that are made of one group's ranks: to a sub-mesh, to a flattened one, to other ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "hyper_parallel/dtensor/spec.h"

namespace hyper_parallel::detail {

// One all_to_all over the outer group. Each rank takes what it needs from the ranks that hold it in its own copy of the source mesh (first
// from itself), or from the first copy if it is in none; where several hold the same, from one of them, in turn.
class CrossMeshPlan {
 public:
  // LayoutError if the meshes have no outer group in common, if shapes or dtypes differ, or if either is Partial.
  CrossMeshPlan(const Spec* from, const Spec* to);
  // Collective over the outer group. `local`: this rank's shard under `from`, [0] on ranks that hold none. Fresh memory.
  at::Tensor run(const at::Tensor& local) const;

 private:
  struct Block {
    ShardPiece piece;
    Box box;
  };
  using Blocks = std::vector<Block>;
  void plan_transfer(int giver, int taker, Blocks* gives, Blocks* takes) const;

  const Spec *from_, *to_;
  std::vector<Blocks> gives_, takes_;  // by rank of the group
};

// Of the calling thread's cache.
const CrossMeshPlan& cross_mesh_plan(const Spec* from, const Spec* to);

}  // namespace hyper_parallel::detail
