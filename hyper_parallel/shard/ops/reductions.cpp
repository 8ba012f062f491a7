// SPDX-License-Identifier: Apache-2.0
// Reductions whose local form differs from the op: mean (shards differ in size), norms (a root follows the sum), item.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "hyper_parallel/base/string.h"
#include "hyper_parallel/shard/propagate.h"

namespace hyper_parallel {
namespace {

struct Reduction {
  std::vector<bool> reduced;
  bool keep = false;
};

Reduction reduction_of(const OpCall& call) {
  const size_t dims = call.tensors[0].sizes.size();
  const auto& schema = call.op->schema();
  Reduction reduction{std::vector<bool>(dims, true)};
  if (auto index = schema.argumentIndexWithName("keepdim")) reduction.keep = call.arguments[*index].toBool();
  const auto index = schema.argumentIndexWithName("dim");
  if (!index || call.arguments[*index].isNone()) return reduction;
  const auto chosen = call.arguments[*index].toIntVector();
  if (chosen.empty()) return reduction;
  std::fill(reduction.reduced.begin(), reduction.reduced.end(), false);
  for (int64_t dim : chosen)
    if (dims > 0) reduction.reduced.at(dim < 0 ? dim + int64_t(dims) : dim) = true;
  return reduction;
}

void replace(Stack& stack, const c10::OperatorHandle& op, at::Tensor result) {
  stack.resize(stack.size() - op.schema().arguments().size());
  stack.emplace_back(std::move(result));
}

const c10::IValue& local_argument(const Stack& stack, const c10::OperatorHandle& op, const char* name) {
  return stack[stack.size() - op.schema().arguments().size() + *op.schema().argumentIndexWithName(name)];
}

// ---- mean: the local sum over the global count, Partial(sum)

void mean_of_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const at::Tensor input = stack[stack.size() - op.schema().arguments().size()].toTensor();
  const auto dtype_value = local_argument(stack, op, "dtype");
  const auto dtype = dtype_value.isNone() ? std::optional<at::ScalarType>() : std::optional(dtype_value.toScalarType());
  const int64_t count = propagation.numbers[0];
  const Shape dims(propagation.numbers.begin() + 2, propagation.numbers.end());
  const at::Tensor sum =
      dims.empty() ? input.to(dtype.value_or(input.scalar_type())) : at::sum(input, dims, propagation.numbers[1] != 0, dtype);
  replace(stack, op, sum / double(count));
}

void mean_rule(const OpCall& call, Factorization& f) {
  const Reduction reduction = reduction_of(call);
  std::vector<int> input, output;
  int64_t count = 1;
  std::vector<int64_t> dims;
  for (size_t dim = 0; dim < reduction.reduced.size(); ++dim) {
    input.push_back(f.add_factor(call.tensors[0].sizes[dim]));
    if (reduction.reduced[dim]) {
      count *= call.tensors[0].sizes[dim];
      dims.push_back(int64_t(dim));
      f.factors.back().reduce = ReduceOp::kSum;
      if (reduction.keep) output.push_back(Factorization::kNone);
    } else
      output.push_back(input.back());
  }
  f.inputs = {input};
  f.outputs = {output};
  f.terms = {{0}};
  f.local_call = mean_of_local;
  f.numbers = {count, reduction.keep};
  f.numbers.insert(f.numbers.end(), dims.begin(), dims.end());
}

// ---- vector norms: powers are summed over the axes that cut the reduced dims, at once, then the root is taken

void reduce_over_axes(const Spec* spec, const std::vector<int64_t>& axes, const at::Tensor& value, ReduceOp reduce) {
  for (int64_t axis : axes) spec->mesh().group(int(axis)).all_reduce(value, reduce).wait();
}

double order_of(const c10::IValue& value) { return value.isInt() ? double(value.toInt()) : value.toDouble(); }

at::Tensor norm_over_axes(const Spec* spec, const std::vector<int64_t>& axes, const at::Tensor& local, double order,
                          at::OptionalIntArrayRef dims, bool keep, std::optional<at::ScalarType> dtype) {
  const double infinity = std::numeric_limits<double>::infinity();
  const bool empty = local.numel() == 0 && std::isinf(order);
  at::Tensor norm = empty ? at::linalg_vector_norm(local, 1, dims, keep, dtype) : at::linalg_vector_norm(local, order, dims, keep, dtype);
  if (axes.empty()) return norm;
  norm = norm.contiguous();
  if (order == infinity)
    reduce_over_axes(spec, axes, norm, ReduceOp::kMax);
  else if (order == 0 || order == 1)
    reduce_over_axes(spec, axes, norm, ReduceOp::kSum);
  else {
    norm = norm.pow(order);
    reduce_over_axes(spec, axes, norm, ReduceOp::kSum);
    norm = norm.pow(1 / order);
  }
  return norm;
}

// numbers: the axes to reduce over.
void vector_norm_of_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const at::Tensor input = stack[stack.size() - op.schema().arguments().size()].toTensor();
  const auto dims_value = local_argument(stack, op, "dim"), dtype_value = local_argument(stack, op, "dtype");
  std::vector<int64_t> dims;
  if (!dims_value.isNone()) dims = dims_value.toIntVector();
  const bool ragged = input.dim() != propagation.inputs[0]->dim();
  at::Tensor norm = norm_over_axes(propagation.inputs[0], propagation.numbers, input, order_of(local_argument(stack, op, "ord")),
                                   dims.empty() || ragged ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(dims),
                                   local_argument(stack, op, "keepdim").toBool(),
                                   dtype_value.isNone() ? std::nullopt : std::optional(dtype_value.toScalarType()));
  replace(stack, op, norm.reshape(propagation.out->local_shape()));
}

void decide_norm(const OpCall& call, const Reduction& reduction, double order, Factorization& f) {
  const Spec* spec = call.tensors[0].spec;
  if (order < 0) call.fail(hyper_parallel::str("norm of order ", order, " (allowed: 0, positive, infinity)"));
  Factorization::Decision decision{{spec->placements()}, {std::vector<Placement>(spec->placements().size())}};
  const bool all = std::all_of(reduction.reduced.begin(), reduction.reduced.end(), [](bool one) { return one; });
  for (size_t axis = 0; axis < spec->placements().size(); ++axis) {
    const Placement& placement = spec->placements()[axis];
    if (placement.is_partial() || (placement.is_ragged() && !all))
      decision.inputs[0][axis] = replicate();
    else if (placement.is_ragged() || (placement.is_shard() && reduction.reduced[placement.dim]))
      f.numbers.push_back(int64_t(axis));
    else if (placement.is_shard()) {
      int dim = placement.dim;
      for (int before = 0; before < placement.dim && !reduction.keep; ++before) dim -= reduction.reduced[before];
      decision.outputs[0][axis] = placement;
      decision.outputs[0][axis].dim = dim;
    }
  }
  f.decision = decision;
}

void vector_norm_rule(const OpCall& call, Factorization& f) {
  decide_norm(call, reduction_of(call), order_of(call["ord"]), f);
  f.local_call = vector_norm_of_local;
}

// norm.Scalar(self, p)
void norm_of_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const at::Tensor input = stack[stack.size() - op.schema().arguments().size()].toTensor();
  const double order = order_of(local_argument(stack, op, "p"));
  replace(stack, op, norm_over_axes(propagation.inputs[0], propagation.numbers, input, order, {}, false, std::nullopt));
}

void norm_rule(const OpCall& call, Factorization& f) {
  decide_norm(call, reduction_of(call), order_of(call["p"]), f);
  f.local_call = norm_of_local;
}

void foreach_norm_of_locals(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const auto locals = stack[stack.size() - op.schema().arguments().size()].toTensorVector();
  const auto dtype_value = local_argument(stack, op, "dtype");
  const double order = order_of(local_argument(stack, op, "ord"));
  c10::List<at::Tensor> norms;
  for (size_t index = 0; index < locals.size(); ++index) {
    std::vector<int64_t> axes;
    const Spec* spec = propagation.inputs[index];
    for (size_t axis = 0; spec != nullptr && axis < spec->placements().size(); ++axis)
      if (spec->placements()[axis].is_shard() || spec->placements()[axis].is_ragged()) axes.push_back(int64_t(axis));
    norms.push_back(norm_over_axes(spec, axes, locals[index], order, {}, false,
                                   dtype_value.isNone() ? std::nullopt : std::optional(dtype_value.toScalarType())));
  }
  stack.resize(stack.size() - op.schema().arguments().size());
  stack.emplace_back(std::move(norms));
}

void foreach_norm_rule(const OpCall& call, Factorization& f) {
  Factorization::Decision decision;
  for (const TensorUse& use : call.tensors) {
    if (use.spec == nullptr) call.fail("a list that mixes plain tensors and DTensors");
    auto& input = decision.inputs.emplace_back(use.spec->placements());
    for (Placement& placement : input)
      if (placement.is_partial()) placement = replicate();
    decision.outputs.emplace_back(std::vector<Placement>(input.size()));
  }
  f.decision = decision;
  f.local_call = foreach_norm_of_locals;
}

// ---- item: every rank reads the whole scalar

void item_rule(const OpCall& call, Factorization& f) {
  f.decision = Factorization::Decision{{std::vector<Placement>(call.mesh->num_axes())}, {}};
}

HYPER_PARALLEL_OP_RULE("mean", mean_rule);
HYPER_PARALLEL_OP_RULE("vector_norm", vector_norm_rule);
HYPER_PARALLEL_OP_RULE("norm", norm_rule);
HYPER_PARALLEL_OP_RULE("foreach_norm", foreach_norm_rule);
HYPER_PARALLEL_OP_RULE("item", item_rule);

}  // namespace
}  // namespace hyper_parallel
