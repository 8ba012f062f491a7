// SPDX-License-Identifier: Apache-2.0
// Op rules: how an op's output lies, given how its inputs lie. A rule names the op's factors (the loops of the op); each dim of an input or
// output runs over one factor. Everything else follows from that for each mesh axis (propagate.h): a factor may be sharded, then every
// tensor that has it is sharded along that dim; a factor that only inputs have leaves a Partial output; linear ops let Partial through.
//
// Most rules are rows of ops/*.yaml in factor notation; what the notation can't say is a function in ops/*.cpp:
//
//   HYPER_PARALLEL_OP_RULE("transpose", [](const OpCall& call, Factorization& f) { ... });   // named by `rule: transpose` in a row
//
// See docs/adding_an_op.md. Errors: LayoutError for ops without a rule and for calls that a rule can't shard.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hyper_parallel/dtensor/dtensor_impl.h"
#include "hyper_parallel/shard/registry.h"

namespace hyper_parallel {

using Stack = std::vector<c10::IValue>;

// A tensor among the arguments, lists flattened. A plain tensor (spec == nullptr) must have no dims and counts as
// replicated; in a backward pass one with dims gets a replicated Spec.
struct TensorUse {
  const Spec* spec = nullptr;
  Shape sizes;
  at::ScalarType dtype = at::kFloat;
  int argument = 0;
  int list_index = -1;  // within a tensor list
  bool present = true;  // false: an undefined or None tensor
};

struct OpCall {
  const c10::OperatorHandle* op;
  std::span<const c10::IValue> arguments;
  std::vector<TensorUse> tensors;
  const DeviceMesh* mesh = nullptr;

  std::string name() const;
  int argument(const std::string& argument_name) const;  // its index; InternalError if the schema lacks it
  bool has(const std::string& argument_name) const { return op->schema().argumentIndexWithName(argument_name).has_value(); }
  const c10::IValue& operator[](const std::string& argument_name) const { return arguments[argument(argument_name)]; }
  int tensor(const std::string& argument_name) const;    // the index in `tensors` of a tensor argument (of a list: of its first)
  size_t num_outputs() const;                            // returned tensors; a returned list counts once
  [[noreturn]] void fail(const std::string& why) const;  // LayoutError with the op and all argument specs
};

struct Factor {
  int64_t size = 1;
  bool whole = false;                   // must not be sharded
  std::optional<ReduceOp> reduce = {};  // of outputs that lack it; without it they must have it for the factor to be sharded
  bool even = false;                    // only when the sharding ranks divide `size`: one dim of several that a view merges
  bool non_empty = false;               // only when every rank gets an element (max of nothing is an error)
  bool contiguous = false;              // a rank's part must be one interval: never StridedShard
};

struct OutputValue {
  Shape sizes, strides;  // strides empty: contiguous
  at::ScalarType dtype = at::kFloat;
};

// Calls the op on the local tensors in place of the op itself; `stack` holds the local arguments on entry and the results on return.
struct Propagation;
using LocalCall = void (*)(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack);

struct Factorization {
  std::vector<Factor> factors;
  std::vector<std::vector<int>> inputs;   // per tensor of the call: the factor of each dim, kNone where it has size 1 or stays whole
  std::vector<std::vector<int>> outputs;  // per returned tensor
  std::vector<std::vector<int>> terms;    // linear ops: the op is a sum of these products of inputs, e.g. {{0}, {1, 2}} for addmm
  std::vector<OutputValue> values;        // of the outputs; empty: the op is run on meta tensors, or `deferred`
  bool deferred = false;                  // outputs take dtype, and the size of dims without a factor, from the local results
  bool dynamic = false;                   // output shapes depend on values: all inputs and outputs replicated, nothing cached
  std::vector<bool> opaque;               // outputs that depend on no factor (a random state): always replicated
  bool elementwise = false;               // same shape in and out, position by position: RaggedShard may pass
  int local_shape_argument = -1;          // an int list that is replaced by the first output's local shape
  bool share_local = false;               // the output is the input's local tensor itself (detach)
  bool writes_nothing = false;            // a call of an op that may write to arguments, but doesn't this time
  LocalCall local_call = nullptr;
  std::vector<int64_t> numbers;  // for local_call
  // A rule that decides by itself: placements that inputs must have and outputs get; factors are then ignored.
  struct Decision {
    std::vector<std::vector<Placement>> inputs, outputs;
  };
  std::optional<Decision> decision;

  static constexpr int kNone = -1;
  int add_factor(int64_t size) {
    factors.push_back({size});
    return int(factors.size()) - 1;
  }
};

using RuleFunction = void (*)(const OpCall& call, Factorization& factorization);

class RuleRegistration {
 public:
  RuleRegistration(const char* name, RuleFunction rule);
};
#define HYPER_PARALLEL_OP_RULE_JOIN(a, b) a##b
#define HYPER_PARALLEL_OP_RULE_NAME(line) HYPER_PARALLEL_OP_RULE_JOIN(op_rule_, line)
#define HYPER_PARALLEL_OP_RULE(name, ...) \
  static const ::hyper_parallel::RuleRegistration HYPER_PARALLEL_OP_RULE_NAME(__LINE__)(name, __VA_ARGS__)

}  // namespace hyper_parallel
