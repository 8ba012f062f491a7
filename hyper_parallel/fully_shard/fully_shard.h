// SPDX-License-Identifier: Apache-2.0
// FSDP and HSDP on flat buckets. The parameters of one unit (a block, the embedding; what no unit holds belongs to the root) sit one after
// another in one flat buffer, padded only at its end and split evenly over the shard axis: a rank holds a 1-d range of each parameter.
//
//   Qwen3 model(Module::root(), config);                                       // on meta
//   FullyShard engine(model, units, mesh);                                     // mesh: (fsdp) or (replicate, fsdp)
//   engine.materialize({.dtype = at::kFloat, .seed = 1});                      // fills this rank's ranges only
//   for each step:
//     engine.zero_grad();
//     for each microbatch: engine.set_reduce_gradients(is_last); loss(model(tokens), labels).backward();
//     engine.finish_backward();                                                // every gradient range is complete now
//     double norm = engine.gradient_norm();
//     optimizer.step(...);                                                     // on parameters(): data and grad
//
// Forward and backward gather a unit's weights before its use, a few units ahead, and free them after it. Gradients (sums, never averages)
// collect in one flat buffer a unit and leave by one reduce-scatter a unit and step, then one all-reduce over replicas. Parameters may be
// tied, frozen or unused, on all ranks or some; units may be called several times or nest; recompute may sit in or around a unit.
//
// Rules: every rank makes the same calls of modules in the same order (their data may differ), and backward reaches the same calls
// on every rank (multiply by 0 what a rank does not need). Results of the root and of units must leave
// through their return values. create_graph is rejected. Module and engine outlive every graph. An axis of size 1 moves and copies nothing.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "hyper_parallel/dtensor/device_mesh.h"
#include "hyper_parallel/dtensor/parameter_sharing.h"
#include "hyper_parallel/dtensor/state_dict.h"
#include "hyper_parallel/nn/module.h"

namespace hyper_parallel {

namespace fsdp {
class Engine;  // detail/engine.h
}

struct FullyShardOptions {
  bool reshard_after_forward = true;  // false: weights stay from forward to backward; one gather less, the whole model in memory
  int forward_prefetch_depth = 1;     // units gathered ahead of the one in use; 0: none
  int backward_prefetch_depth = 1;
  std::unordered_map<const Parameter*, ParameterSharing> sharing = {};  // absent: this rank alone holds these elements
  ProcessGroup model_group = {};  // ranks that hold other parameters, or parts: the norm is theirs together
};

// This rank's range of one parameter. The tensors alias the engine's memory and stay valid for its life.
struct ShardedParameter {
  std::string name;            // full name; the first one of a tied parameter
  std::vector<int64_t> sizes;  // of the whole parameter
  TensorPart part;             // of it, that this rank's shard group holds
  at::Tensor data;             // [n], elements [begin, begin + n) of the flattened part; n may be 0
  at::Tensor grad;             // [n], has memory from finish_backward() to zero_grad() only; undefined if frozen
  int64_t begin = 0;
  bool trainable = true;
  bool decays = true;
};

struct FullyShardStatistics {  // since construction
  int64_t num_gathers = 0;     // buckets; 0 on a shard axis of size 1
  int64_t num_reduces = 0;     // buckets
  int most_units_live = 0;     // with their weights in memory at one time, the root included
};

class FullyShard {
 public:
  // `units`: distinct descendants of root. `mesh`: 1-d (shard) or 2-d (replicate, shard). Reads each slot's `trainable`. LayoutError if
  // a unit is not below root, a slot holds data already, or the mesh has more axes.
  FullyShard(Module& root, std::span<Module* const> units, const DeviceMesh& mesh, const FullyShardOptions& options = {});
  ~FullyShard();
  FullyShard(const FullyShard&) = delete;
  FullyShard& operator=(const FullyShard&) = delete;

  // Once, before anything below. Values are bit-identical for every mesh. dtype f64, f32, bf16 or f16.
  void materialize(const MaterializeOptions& options);

  // Drops the gradients and their memory.
  void zero_grad();
  // false in all microbatches but the last: their gradients stay, unreduced. Reducing in every microbatch is legal too: less memory,
  // more traffic. Initially true.
  void set_reduce_gradients(bool reduce);
  // Collective, once a step after the last backward: reduces what is left, waits for what is in flight; frees all weights.
  void finish_backward();
  // Collective over the shard axis and the model group, after finish_backward(): the 2-norm over every distinct trainable element, summed
  // in f64 in a fixed order.
  double gradient_norm() const;
  // After an exception out of forward or backward: everything sharded, gradients dropped, nothing pending. Local.
  void reset();

  // Walk order, frozen ones included.
  std::vector<ShardedParameter> parameters() const;
  // One entry per parameter, aliasing the data: loading into it sets the weights.
  StateDict state_dict() const;

  // Collective: all weights on every rank until reshard(), for generation or export; the slots hold them. Don't change weights meanwhile.
  void unshard();
  void reshard();

  const FullyShardStatistics& statistics() const;

 private:
  std::unique_ptr<fsdp::Engine> engine_;
};

// The whole model in memory for a scope.
class UnshardScope {
 public:
  explicit UnshardScope(FullyShard& engine) : engine_(engine) { engine_.unshard(); }
  ~UnshardScope() { engine_.reshard(); }
  UnshardScope(const UnshardScope&) = delete;
  UnshardScope& operator=(const UnshardScope&) = delete;

 private:
  FullyShard& engine_;
};

}  // namespace hyper_parallel
