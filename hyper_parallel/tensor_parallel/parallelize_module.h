// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism by a plan: names of modules, or globs, and what is done to them.
//
//   TensorParallel tp = parallelize_module(block, mesh["tp"], {
//     {"attention.*_proj", ColwiseParallel()},
//     {"attention.out", RowwiseParallel()},
//     {"mlp.up", ColwiseParallel()},
//     {"mlp.down", RowwiseParallel()},
//   });
//   materialize(block, {.dtype = at::kFloat, .seed = 1});     // each rank fills its parts: the values of the one-rank model
//
// Gradients of parameters that ranks hold in common may be terms only (norms under SequenceParallel): tp.sharing says so to engines that
// reduce gradients (FullyShardOptions); without such an engine call tp.sum_gradients() after backward.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hyper_parallel/tensor_parallel/styles.h"

namespace hyper_parallel {

struct PlanEntry {
  template <class Style>
  PlanEntry(std::string name, Style style) : name(std::move(name)), style(std::make_shared<const Style>(std::move(style))) {}
  std::string name;  // as Module::find() takes it; "" is the module itself
  std::shared_ptr<const ParallelStyle> style;
};
using ParallelPlan = std::vector<PlanEntry>;  // applied in this order; several entries may name one module

struct TensorParallel {
  ProcessGroup group;
  std::unordered_map<const Parameter*, ParameterSharing> sharing;  // of every parameter of the module
  std::vector<Parameter*> with_terms;  // those whose gradients are terms, in the order of named_parameters(): the same on every rank

  // Collective: one all_reduce for each group of ranks with terms. Once for each zeroing of the gradients: a second call sums the sums.
  void sum_gradients() const;
};

// Collective. `mesh`: one axis. LayoutError if the module isn't on meta, if an entry matches no module, or a style doesn't fit.
TensorParallel parallelize_module(Module& module, const DeviceMesh& mesh, const ParallelPlan& plan);

}  // namespace hyper_parallel
