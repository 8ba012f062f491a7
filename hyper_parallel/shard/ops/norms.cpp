// SPDX-License-Identifier: Apache-2.0
// Layer norm: leading dims may be sharded, normalised dims stay whole; weight gradients are Partial over sharded leading dims.
#include "hyper_parallel/shard/op_rule.h"

namespace hyper_parallel {
namespace {

constexpr int kNone = Factorization::kNone;

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

HYPER_PARALLEL_OP_RULE("layer_norm", layer_norm_rule);
HYPER_PARALLEL_OP_RULE("layer_norm_backward", layer_norm_backward_rule);

}  // namespace
}  // namespace hyper_parallel
