// SPDX-License-Identifier: Apache-2.0
// Moves a sharded tensor from one layout to another on the same mesh.
//
//   const RedistributePlan& plan = redistribute_plan(x.spec(), target);   // cached; pointers are the key
//   at::Tensor local = plan.run(x.to_local());
//
// A plan is a short list of steps over one axis each, found as the cheapest path through layouts that differ in one axis: Partial axes are
// reduced first, reduce_scatter beats all_reduce + slice, Shard(i) -> Shard(j) is one all_to_all. Where no such path exists (nested axes in
// another order, odd strided or ragged pairs) one all_to_all over the whole mesh moves the boxes that ranks lack. Exact for uneven and
// empty shards and for several axes on one dim. Nothing here enters autograd; DTensor::redistribute does.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>

#include "hyper_parallel/dtensor/spec.h"

namespace hyper_parallel {

struct RedistributeStep {
  enum class Kind : uint8_t { kSlice, kAllGather, kAllToAll, kReduceScatter, kAllReduce, kMoveBoxes, kKeepTerm };
  Kind kind;
  int axis;                // mesh axis the step runs over; -1: all of them (kMoveBoxes)
  int from_dim = -1;       // tensor dim that was sharded, -1 if none
  int to_dim = -1;         // tensor dim that becomes sharded, -1 if none
  int64_t bytes_sent = 0;  // per rank, for the cost model and CommDebugMode
};
const char* name_of(RedistributeStep::Kind kind);

// Whether a replicated tensor may become Partial: one rank of the axis keeps it, the others take the neutral element. Op rules use it to
// add a replicated term to a Partial sum without communication.
enum class AllowPartial : uint8_t { kNo, kYes };

class RedistributePlan {
 public:
  const Spec* from() const { return from_; }
  const Spec* to() const { return to_; }
  std::span<const RedistributeStep> steps() const { return steps_; }
  int64_t bytes_sent() const;
  double cost_us() const;  // 5 us a collective + 10 GB/s; equal on all ranks
  // `local`: this rank's shard, shape from()->local_shape(). Returns a contiguous shard under the target spec, fresh memory unless steps()
  // is empty. Collective: all ranks of the mesh must call it. Throws CollectiveError on time-out or mismatch.
  at::Tensor run(const at::Tensor& local) const;
  // The same, but slices may alias `local`: for inputs that are only read.
  at::Tensor run_aliasing(const at::Tensor& local) const;
  std::string to_string() const;  // "reduce_scatter(tp) + all_gather(dp)"

 private:
  friend class PlanBuilder;
  friend std::vector<at::Tensor> run_together(std::span<const RedistributePlan* const> plans, std::vector<at::Tensor> locals);
  const Spec* from_ = nullptr;
  const Spec* to_ = nullptr;
  std::vector<RedistributeStep> steps_;
  std::vector<const Spec*> specs_;  // before each step, and the last
};

// Throws LayoutError if meshes, shapes or dtypes differ, or if the target asks for Partial where `from` is not Partial in the same way:
// there is no one way to split a value into terms (factors, ...), so only op rules ask for it, by AllowPartial.
// The plan belongs to the calling thread's cache and lives as long as the thread.
const RedistributePlan& redistribute_plan(const Spec* from, const Spec* to, AllowPartial allow_partial = AllowPartial::kNo);

// Runs several plans at once, the same ones on every rank: steps of one kind over one group, dtype and reduction share one collective.
// `locals[i]` is plans[i]'s input; results may alias them, as in run_aliasing.
std::vector<at::Tensor> run_together(std::span<const RedistributePlan* const> plans, std::vector<at::Tensor> locals);

// `from` with other placements; strides contiguous unless nothing changes.
const Spec* with_placements(const Spec* from, const std::vector<Placement>& placements);

}  // namespace hyper_parallel
