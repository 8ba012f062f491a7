// SPDX-License-Identifier: Apache-2.0
// Norms. Layer and RMS norm: leading dims may be sharded, normalised dims stay whole; weight gradients are Partial over sharded leading
// dims. Group norm: the batch. Batch norm: channels, and everything but positions' statistics when it doesn't train.
#include "hyper_parallel/shard/detail/rule_support.h"

namespace hyper_parallel {
namespace {

using namespace detail;

struct NormFactors {
  std::vector<int> input, statistics, weight;
};

NormFactors bind_norm(const OpCall& call, const Shape& sizes, Factorization& f) {
  const size_t normalized = call["normalized_shape"].toIntVector().size(), batch = sizes.size() - normalized;
  NormFactors factors;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    factors.input.push_back(f.add_factor(sizes[dim]));
    if (dim < batch) {
      f.factors.back().reduce = ReduceOp::kSum;
      factors.statistics.push_back(factors.input.back());
    } else {
      f.factors.back().whole = true;
      factors.statistics.push_back(kNone);
      factors.weight.push_back(factors.input.back());
    }
  }
  return factors;
}

// native_layer_norm(input, normalized_shape, weight?, bias?, eps) -> (output, mean, rstd)
void layer_norm_rule(const OpCall& call, Factorization& f) {
  const NormFactors factors = bind_norm(call, call.tensors[0].sizes, f);
  f.inputs = {factors.input, factors.weight, factors.weight};
  f.outputs = {factors.input, factors.statistics, factors.statistics};
}

// native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight?, bias?, mask) -> (grad_input, grad_weight, grad_bias)
void layer_norm_backward_rule(const OpCall& call, Factorization& f) {
  const NormFactors factors = bind_norm(call, call.tensors[1].sizes, f);
  f.inputs = {factors.input, factors.input, factors.statistics, factors.statistics, factors.weight, factors.weight};
  f.outputs = {factors.input, factors.weight, factors.weight};
  const Shape weight = call["normalized_shape"].toIntVector();
  const at::ScalarType dtype = call.tensors[1].dtype;
  f.values = {{call.tensors[1].sizes, {}, dtype}, {weight, {}, dtype}, {weight, {}, dtype}};
}

// _fused_rms_norm(input, normalized_shape, weight?, eps) -> (output, rstd), and its gradient (gradient, input, .., rstd, weight?)
void rms_norm_rule(const OpCall& call, Factorization& f) {
  const NormFactors factors = bind_norm(call, call.tensors[0].sizes, f);
  f.inputs = {factors.input, factors.weight};
  f.outputs = {factors.input, factors.statistics};
}

void rms_norm_backward_rule(const OpCall& call, Factorization& f) {
  const NormFactors factors = bind_norm(call, call.tensors[1].sizes, f);
  f.inputs = {factors.input, factors.input, factors.statistics, factors.weight};
  f.outputs = {factors.input, factors.weight};
  f.deferred = true;
}

// ---- group norm: (input [n, c, ...], weight?, bias?, N, C, HxW, group, eps) -> (output, mean [n, group], rstd)

void group_norm_local(const Propagation&, const c10::OperatorHandle& op, Stack& stack) {
  local_argument(stack, op, "N") = local_argument(stack, op, size_t(0)).toTensor().size(0);
  op.callBoxed(&stack);
}

int bind_group_norm(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  const int batch = f.add_factor(call["N"].toInt());
  f.factors[batch].non_empty = true;
  f.local_call = group_norm_local;
  return batch;
}

std::vector<int> batch_first(int batch, size_t dims) {
  std::vector<int> factors(dims, kNone);
  factors[0] = batch;
  return factors;
}

void group_norm_rule(const OpCall& call, Factorization& f) {
  const int batch = bind_group_norm(call, f);
  f.inputs[0] = batch_first(batch, call.tensors[0].sizes.size());
  f.outputs = {f.inputs[0], {batch, kNone}, {batch, kNone}};
  const Shape statistics{call["N"].toInt(), call["group"].toInt()};
  f.values = {
      {call.tensors[0].sizes, {}, call.tensors[0].dtype}, {statistics, {}, call.tensors[0].dtype}, {statistics, {}, call.tensors[0].dtype}};
  if (call.tensors[1].present && call.tensors[1].dtype != call.tensors[0].dtype) {
    f.values.clear();
    f.deferred = true;
  }
}

// (gradient, input, mean, rstd, weight?, N, C, HxW, group, mask) -> (of input, of weight, of bias)
void group_norm_backward_rule(const OpCall& call, Factorization& f) {
  const int batch = bind_group_norm(call, f);
  for (int tensor = 0; tensor < 4; ++tensor) f.inputs[tensor] = batch_first(batch, call.tensors[tensor].sizes.size());
  f.outputs = {f.inputs[1], {kNone}, {kNone}};
  f.factors[batch].reduce = ReduceOp::kSum;
  f.deferred = true;
}

// ---- batch norm: input [n, c, ...], everything else [c]

// Statistics of a batch need all of it; without training they are given.
void bind_batch_norm(const OpCall& call, bool train, Factorization& f) {
  start_whole(call, f);
  const Shape& sizes = call.tensors[call.tensor("input")].sizes;
  std::vector<int> full(sizes.size(), kNone);
  full[1] = f.add_factor(sizes[1]);
  if (!train)
    for (size_t d = 0; d < sizes.size(); ++d)
      if (d != 1) full[d] = f.add_factor(sizes[d]);
  for (size_t tensor = 0; tensor < call.tensors.size(); ++tensor)
    if (call.tensors[tensor].sizes.size() == sizes.size())
      f.inputs[tensor] = full;
    else if (call.tensors[tensor].sizes == Shape{sizes[1]})
      f.inputs[tensor] = {full[1]};
  for (Factor& factor : f.factors) factor.non_empty = true;
}

void batch_norm_rule(const OpCall& call, Factorization& f) {
  const std::string& name = call.op->schema().name();
  const bool legit_eval = name.find("no_training") != std::string::npos;
  bind_batch_norm(call, !legit_eval && (!call.has("training") || call["training"].toBool()), f);
  f.outputs = {f.inputs[call.tensor("input")]};
  f.writes_nothing = call.has("training") && !call["training"].toBool();
  // The statistics are the channels', or empty: their first dim is left to the local result unless it is cut.
  const bool train = f.factors.size() == 1;
  for (size_t output = 1; output < call.num_outputs(); ++output) f.outputs.push_back({train ? f.outputs[0][1] : kNone});
  f.opaque.assign(f.outputs.size(), false);
  if (!train)
    for (size_t output = 1; output < f.outputs.size(); ++output) f.opaque[output] = true;
  if (name.find("_with_update") != std::string::npos) f.opaque[3] = true;  // reserve
  if (name.find("functional") != std::string::npos)
    for (size_t output = f.outputs.size() - 2; output < f.outputs.size(); ++output) {  // new running statistics
      f.outputs[output] = {f.outputs[0][1]};
      f.opaque[output] = false;
      if (!train)
        for (size_t d = 0; d < f.outputs[0].size(); ++d)
          if (d != 1) f.factors[f.outputs[0][d]].whole = true;
    }
  f.deferred = true;
}

// (gradient, input, weight?, running mean?, running var?, saved mean?, saved rstd?, train, eps, mask) -> (of input, of weight, of bias)
void batch_norm_backward_rule(const OpCall& call, Factorization& f) {
  bind_batch_norm(call, call["train"].toBool(), f);
  const auto& full = f.inputs[1];
  f.outputs = {full, {full[1]}, {full[1]}};
  for (size_t d = 0; d < full.size(); ++d)
    if (d != 1 && full[d] >= 0) f.factors[full[d]].reduce = ReduceOp::kSum;
  f.deferred = true;
}

HYPER_PARALLEL_OP_RULE("rms_norm", rms_norm_rule);
HYPER_PARALLEL_OP_RULE("rms_norm_backward", rms_norm_backward_rule);
HYPER_PARALLEL_OP_RULE("group_norm", group_norm_rule);
HYPER_PARALLEL_OP_RULE("group_norm_backward", group_norm_backward_rule);
HYPER_PARALLEL_OP_RULE("batch_norm", batch_norm_rule);
HYPER_PARALLEL_OP_RULE("batch_norm_backward", batch_norm_backward_rule);
HYPER_PARALLEL_OP_RULE("layer_norm", layer_norm_rule);
HYPER_PARALLEL_OP_RULE("layer_norm_backward", layer_norm_backward_rule);

}  // namespace
}  // namespace hyper_parallel
