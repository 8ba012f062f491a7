// SPDX-License-Identifier: Apache-2.0
// Losses with a `reduction` argument. A mean over shards of different sizes isn't the mean of means: locally the sum is taken, over the
// global count; the result is Partial.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/nll_loss_backward.h>

#include "hyper_parallel/shard/detail/rule_support.h"

namespace hyper_parallel {
namespace {

using namespace detail;

int64_t reduction_of(const OpCall& call) { return call["reduction"].toInt(); }

// All tensors broadcast to one shape; returns it.
Shape bind_broadcast(const OpCall& call, size_t first, Factorization& f) {
  Shape shape;
  size_t dims = 0;
  for (size_t index = first; index < call.tensors.size(); ++index)
    if (call.tensors[index].present) dims = std::max(dims, call.tensors[index].sizes.size());
  shape.assign(dims, 1);
  const auto each = [&](const auto& visit) {
    for (size_t index = first; index < call.tensors.size(); ++index) {
      const TensorUse& use = call.tensors[index];
      for (size_t d = 0; use.present && d < use.sizes.size(); ++d) visit(index, d, dims - use.sizes.size() + d, use.sizes[d]);
    }
  };
  each([&](size_t, size_t, size_t place, int64_t size) { shape[place] = size == 1 ? shape[place] : size; });
  for (int64_t size : shape) f.add_factor(size);
  each([&](size_t index, size_t d, size_t place, int64_t size) { f.inputs[index][d] = size == shape[place] ? int(place) : kNone; });
  return shape;
}

// numbers: the global count.
void mean_of_sum(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  local_argument(stack, op, "reduction") = int64_t(at::Reduction::Sum);
  op.callBoxed(&stack);
  stack.back() = stack.back().toTensor() / double(propagation.numbers[0]);
}

// loss(input, target, weights..., reduction): element by element, then reduced.
void loss_rule(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  const Shape shape = bind_broadcast(call, 0, f);
  const int64_t reduction = reduction_of(call);
  f.outputs.resize(1);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (reduction == at::Reduction::None)
      f.outputs[0].push_back(int(d));
    else
      f.factors[d].reduce = ReduceOp::kSum;
  }
  if (reduction != at::Reduction::Mean) return;
  f.numbers = {numel_of(shape)};
  f.local_call = mean_of_sum;
}

// The gradient over the global count; the op itself would divide by the local one.
void backward_of_sum(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  local_argument(stack, op, "reduction") = int64_t(at::Reduction::Sum);
  c10::IValue& gradient = local_argument(stack, op, size_t(0));
  gradient = gradient.toTensor() / double(propagation.numbers[0]);
  op.callBoxed(&stack);
}

// loss_backward(gradient, input, target, weights..., reduction) -> like input
void loss_backward_rule(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  const Shape shape = bind_broadcast(call, 1, f);
  f.outputs = {{}};
  for (size_t d = 0; d < shape.size(); ++d) f.outputs[0].push_back(int(d));
  const Shape& gradient = call.tensors[0].sizes;
  for (size_t d = 0; d < gradient.size(); ++d)
    if (const size_t place = shape.size() - gradient.size() + d; gradient[d] == shape[place]) f.inputs[0][d] = int(place);
  f.terms = {{0}};
  if (reduction_of(call) != at::Reduction::Mean) return;
  f.numbers = {numel_of(shape)};
  f.local_call = backward_of_sum;
}

// ---- nll_loss: input [n, classes, ...] or [classes], target [n, ...] or []

void bind_nll(const OpCall& call, int input, int target, Factorization& f) {
  const Shape& sizes = call.tensors[input].sizes;
  for (size_t d = 0; d < sizes.size() && sizes.size() > 1; ++d) {
    if (d == 1) continue;
    const int factor = f.add_factor(sizes[d]);
    f.inputs[input][d] = factor;
    f.inputs[target][d == 0 ? 0 : d - 1] = factor;
  }
}

// The weights of valid targets are summed over the ranks that share the samples; the loss stays Partial.
void nll_mean_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  local_argument(stack, op, "reduction") = int64_t(at::Reduction::Sum);
  op.callBoxed(&stack);
  const at::Tensor total = stack[stack.size() - 1].toTensor().clone();
  all_reduce_over(propagation.inputs[0], total, ReduceOp::kSum);
  stack[stack.size() - 2] = stack[stack.size() - 2].toTensor() / total;
  stack[stack.size() - 1] = total;
}

// nll_loss_forward(input, target, weight?, reduction, ignore_index) -> (loss, total weight)
void nll_loss_rule(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  bind_nll(call, 0, 1, f);
  f.outputs.resize(2);
  const int64_t reduction = reduction_of(call);
  if (reduction == at::Reduction::None && call.tensors[0].sizes.size() > 1) {
    f.outputs[0] = f.inputs[1];
    f.opaque = {false, true};
  } else {
    for (Factor& factor : f.factors) factor.reduce = ReduceOp::kSum;
    if (reduction == at::Reduction::Mean) {
      f.opaque = {false, true};
      f.local_call = nll_mean_local;
    }
  }
  const Shape loss = f.outputs[0].empty() ? Shape() : call.tensors[1].sizes;
  f.values = {{loss, {}, call.tensors[0].dtype}, {{}, {}, call.tensors[0].dtype}};
}

// nll_loss_backward(gradient, input, target, weight?, reduction, ignore_index, total weight) -> like input
void nll_loss_backward_rule(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  bind_nll(call, 1, 2, f);
  if (call.tensors[0].sizes.size() == call.tensors[2].sizes.size()) f.inputs[0] = f.inputs[2];
  f.outputs = {f.inputs[1]};
  f.terms = {{0}};
  f.values = {{call.tensors[1].sizes, {}, call.tensors[1].dtype}};
}

HYPER_PARALLEL_OP_RULE("loss", loss_rule);
HYPER_PARALLEL_OP_RULE("loss_backward", loss_backward_rule);
HYPER_PARALLEL_OP_RULE("nll_loss", nll_loss_rule);
HYPER_PARALLEL_OP_RULE("nll_loss_backward", nll_loss_backward_rule);

}  // namespace
}  // namespace hyper_parallel
