// SPDX-License-Identifier: Apache-2.0
// Propagation: what one call of an op does, found from its rule and kept per thread: the inputs' redistributions, the outputs' Specs.
//
// Choice: for each mesh axis in turn (outer first) the candidates are: all replicated, each factor sharded, Partial terms (linear ops),
// ragged (elementwise ops). The cheapest is taken, earlier candidates on a tie. The cost of a candidate is a time in us, summed over
// inputs:
//
//   nothing to do 0;  slice of a replicated input 0.1 (no communication);  any collective  5 + bytes sent per rank / 10,000   (10 GB/s)
//   bytes sent, of b local bytes over n ranks:  all_gather (n-1) b;  all_to_all (n-1)/n b;  reduce_scatter (n-1)/n b;  all_reduce 2 (n-1)/n
//   b
//
// Shards of other axes divide b. It depends on global shapes only, so that all ranks choose alike. The redistribution itself then takes the
// cheapest path by the same figures (dtensor/redistribute.h).
//
// In place, the target keeps its placement: first among candidates that keep it; if there is none, a Partial target is reduced first and
// stays reduced, another one is redistributed, worked on and redistributed back. The same holds for other arguments that an op writes to.
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

// An argument that was redistributed and written to: the way back.
struct WriteBack {
  int argument = 0, list_index = -1;
  const RedistributePlan* plan = nullptr;
};

// What wrapping the results needs where shapes and dtypes are taken from them.
struct DeferredOutput {
  std::vector<Placement> placements;
  Shape sizes;               // -1: the local result's
  bool local_shape = false;  // so are all of them
};

struct Propagation {
  std::vector<InputPlan> plans;
  std::vector<WriteBack> write_backs;
  std::vector<const Spec*> inputs;           // as the local op sees them; null for plain and absent tensors
  mutable std::vector<const Spec*> outputs;  // lists flattened; none for in-place results
  mutable const Spec* out = nullptr;         // outputs[0]
  mutable bool deferred = false;             // `outputs` are found from the first results
  std::vector<DeferredOutput> deferred_outputs;
  int num_groups = 0;    // of a deferred foreach op: list indices; outputs are by index first
  bool dynamic = false;  // `outputs` are found anew each time
  const DeviceMesh* mesh = nullptr;
  // An in-place op that can't be done on Partial terms reduces its target first: the target's new Spec, and the way there.
  const RedistributePlan* reduce_target = nullptr;
  mutable bool simple = false;  // nothing to do but to call the op on the local tensors
  bool share_local = false, view = false;
  int shape_argument = -1;
  std::vector<c10::SymInt> shape;  // replaces that argument
  c10::IValue boxed_shape;
  LocalCall local_call = nullptr;
  std::vector<int64_t> numbers;
  double cost_us = 0;
  int64_t bytes_sent = 0;       // by the redistributions
  mutable bool warned = false;  // policy.h
};

// `arguments` as the dispatcher got them. Throws LayoutError (see op_rule.h).
Propagation propagate(const c10::OperatorHandle& op, const OpRow& row, std::span<const c10::IValue> arguments);
// The tensors of a call, and their mesh. `plain`: arguments that may be plain tensors with dims.
OpCall make_call(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments, std::span<const std::string> plain = {});

// Whether autograd is running a backward pass on this thread: there, plain tensors with dims count as replicated.
bool in_backward();
// Whether an op writes to this argument, or to the tensors of this list.
bool writes_to(const c10::Argument& argument);

}  // namespace hyper_parallel
