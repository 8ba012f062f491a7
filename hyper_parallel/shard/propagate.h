// SPDX-License-Identifier: Apache-2.0
// Propagation: what one call of an op does, found from its rule and kept per thread: the inputs' redistributions, the outputs' Specs.
//
// For each mesh axis the candidates are: all replicated, each factor sharded, Partial terms (linear ops). The cheapest is taken, where the
// cost is what its redistributions send (bytes at 10 GB/s + 5 us each). An in-place op keeps the placement of the tensor it writes to,
// but for a Partial one that it can't work on: that is reduced first.
#pragma once
#include <c10/core/SymInt.h>

#include <vector>

#include "hyper_parallel/dtensor/redistribute.h"
#include "hyper_parallel/shard/op_registry.h"

namespace hyper_parallel {

struct InputPlan {
  int argument = 0, list_index = -1;
  const RedistributePlan* plan = nullptr;  // null: a plain scalar that only the axes' first ranks keep
};

struct Propagation {
  std::vector<InputPlan> plans;
  std::vector<const Spec*> inputs;   // as the local op sees them; null for plain and absent tensors
  std::vector<const Spec*> outputs;  // lists flattened; none for in-place results
  const Spec* out = nullptr;         // outputs[0]
  // An in-place op that can't be done on Partial terms reduces its target first: the target's new Spec, and the way there.
  const RedistributePlan* reduce_target = nullptr;
  bool simple = false;  // nothing to do but to call the op on the local tensors
  bool share_local = false, view = false;
  int shape_argument = -1;
  std::vector<c10::SymInt> shape;  // replaces that argument
  c10::IValue boxed_shape;
  LocalCall local_call = nullptr;
  std::vector<int64_t> numbers;
  double cost_us = 0;
};

// `arguments` as the dispatcher got them. Throws LayoutError (see op_rule.h).
Propagation propagate(const c10::OperatorHandle& op, const OpRow& row, std::span<const c10::IValue> arguments);
// The tensors of a call, and their mesh.
OpCall make_call(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

// Whether autograd is running a backward pass on this thread: there, plain tensors with dims count as replicated.
bool in_backward();
// Whether an op writes to this argument, or to the tensors of this list.
bool writes_to(const c10::Argument& argument);

}  // namespace hyper_parallel
