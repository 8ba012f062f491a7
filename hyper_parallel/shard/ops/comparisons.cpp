// SPDX-License-Identifier: Apache-2.0
// Ops whose result is a plain number or depends on all elements in a way of its own: equal, is_same_size, histc, norm, AMP's scan.
#include <ATen/ops/full.h>

#include <set>

#include "hyper_parallel/shard/detail/rule_support.h"

namespace hyper_parallel {
namespace {

using namespace detail;

// ---- equal, allclose: of the local parts, on all ranks

void equal_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const at::TensorOptions options = local_argument(stack, op, size_t(0)).toTensor().options();
  op.callBoxed(&stack);
  const at::Tensor all = at::full({}, int64_t(stack.back().toBool()), options.dtype(at::kLong));
  all_reduce_over(propagation.inputs[0], all, ReduceOp::kMin);
  stack.back() = all.item<int64_t>() != 0;
}

void equal_rule(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  f.local_call = equal_local;
  if (call.tensors[0].sizes != call.tensors[1].sizes) return;
  for (size_t d = 0; d < call.tensors[0].sizes.size(); ++d) f.inputs[0][d] = f.inputs[1][d] = f.add_factor(call.tensors[0].sizes[d]);
}

// numbers: the answer.
void known_answer(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  replace_arguments(stack, op, propagation.numbers[0] != 0);
}

void stay_as_they_are(const OpCall& call, Factorization& f) {
  f.decision.emplace();
  for (const TensorUse& use : call.tensors)
    f.decision->inputs.push_back(use.spec ? use.spec->placements() : std::vector<Placement>(call.mesh->num_axes()));
}

void is_same_size_rule(const OpCall& call, Factorization& f) {
  stay_as_they_are(call, f);
  f.numbers = {call.tensors[0].sizes == call.tensors[1].sizes};
  f.local_call = known_answer;
}

// A question about the local tensor (is_pinned).
void ask_local_rule(const OpCall& call, Factorization& f) { stay_as_they_are(call, f); }

// ---- histc(self, bins, min, max): counts add up if the range is given

void histc_rule(const OpCall& call, Factorization& f) {
  const auto number = [&](const char* name) { return call[name].isInt() ? double(call[name].toInt()) : call[name].toDouble(); };
  f.inputs = {new_factors(call.tensors[0].sizes, f)};
  for (Factor& factor : f.factors) {
    factor.reduce = ReduceOp::kSum;
    factor.whole = number("min") == number("max");  // the range is that of the data
  }
  f.outputs = {{kNone}};
  f.values = {{{call["bins"].toInt()}, {}, call.tensors[0].dtype}};
}

// ---- _amp_foreach_non_finite_check_and_unscale_(self[], found_inf, inv_scale): every rank learns of an infinity anywhere

void unscale_locals(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const at::Tensor found = local_argument(stack, op, size_t(1)).toTensor();
  std::set<int64_t> axes;
  for (const Spec* spec : propagation.inputs)
    for (int64_t axis : cutting_axes(spec)) axes.insert(axis);
  op.callBoxed(&stack);
  for (int64_t axis : axes) propagation.mesh->group(int(axis)).all_reduce(found, ReduceOp::kMax).wait();
}

void unscale_rule(const OpCall& call, Factorization& f) {
  f.decision.emplace();
  for (const TensorUse& use : call.tensors) {
    auto& placements = f.decision->inputs.emplace_back(use.spec ? use.spec->placements() : std::vector<Placement>(call.mesh->num_axes()));
    for (Placement& placement : placements)
      if (placement.is_partial()) placement = replicate();
  }
  f.local_call = unscale_locals;
}

HYPER_PARALLEL_OP_RULE("equal", equal_rule);
HYPER_PARALLEL_OP_RULE("is_same_size", is_same_size_rule);
HYPER_PARALLEL_OP_RULE("ask_local", ask_local_rule);
HYPER_PARALLEL_OP_RULE("histc", histc_rule);
HYPER_PARALLEL_OP_RULE("unscale", unscale_rule);

}  // namespace
}  // namespace hyper_parallel
