// SPDX-License-Identifier: Apache-2.0
// Convolution: the batch and, without groups, input and output channels may be sharded; positions stay whole.
#include "hyper_parallel/shard/detail/rule_support.h"

namespace hyper_parallel {
namespace {

using namespace detail;

struct ConvolutionFactors {
  int batch = kNone, in = kNone, out = kNone;
};

// weight: [out, in / groups, ...], transposed [in, out / groups, ...]
ConvolutionFactors bind_channels(const OpCall& call, int input, int weight, Factorization& f) {
  const bool transposed = call["transposed"].toBool();
  const Shape &sizes = call.tensors[input].sizes, &kernel = call.tensors[weight].sizes;
  ConvolutionFactors factors{f.add_factor(sizes[0])};
  f.inputs[input][0] = factors.batch;
  if (call["groups"].toInt() != 1) return factors;
  factors.in = f.inputs[input][1] = f.add_factor(sizes[1]);
  factors.out = f.add_factor(kernel[transposed ? 1 : 0]);
  f.inputs[weight][transposed ? 0 : 1] = factors.in;
  f.inputs[weight][transposed ? 1 : 0] = factors.out;
  return factors;
}

void keep_non_empty(Factorization& f) {
  for (Factor& factor : f.factors) factor.non_empty = true;
}

// convolution(input [n, in, ...], weight, bias?) -> [n, out, ...]
void convolution_rule(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  const Shape& sizes = call.tensors[0].sizes;
  const ConvolutionFactors factors = bind_channels(call, 0, 1, f);
  if (call.tensors[2].present) f.inputs[2][0] = factors.out;
  if (factors.in >= 0) f.factors[factors.in].reduce = ReduceOp::kSum;
  f.outputs = {std::vector<int>(sizes.size(), kNone)};
  f.outputs[0][0] = factors.batch;
  f.outputs[0][1] = factors.out;
  f.terms = {{2}, {0, 1}};
  f.deferred = true;
  keep_non_empty(f);
}

// The bias has as many elements as there are output channels here.
void local_bias_size(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  if (!propagation.numbers.empty()) {
    const int64_t channels = local_argument(stack, op, size_t(0)).toTensor().size(1);
    local_argument(stack, op, "bias_sizes") = std::vector<int64_t>{channels};
  }
  op.callBoxed(&stack);
}

// convolution_backward(gradient [n, out, ...], input, weight, bias_sizes, ...) -> (of input, of weight, of bias)
void convolution_backward_rule(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  const ConvolutionFactors factors = bind_channels(call, 1, 2, f);
  f.inputs[0][0] = factors.batch;
  f.inputs[0][1] = factors.out;
  f.outputs = {f.inputs[1], f.inputs[2], {factors.out}};
  for (int factor : {factors.batch, factors.out})
    if (factor >= 0) f.factors[factor].reduce = ReduceOp::kSum;
  // The bias gradient doesn't run over input channels: ranks that cut them would each hold all of it.
  if (factors.in >= 0) f.factors[factors.in].whole = true;
  keep_non_empty(f);
  const at::ScalarType dtype = call.tensors[0].dtype;
  const bool bias = !call["bias_sizes"].isNone();
  f.values = {{call.tensors[1].sizes, {}, dtype}, {call.tensors[2].sizes, {}, dtype}, {{call.tensors[0].sizes[1]}, {}, dtype}};
  if (bias) f.numbers = {1};
  f.local_call = local_bias_size;
}

HYPER_PARALLEL_OP_RULE("convolution", convolution_rule);
HYPER_PARALLEL_OP_RULE("convolution_backward", convolution_backward_rule);

}  // namespace
}  // namespace hyper_parallel
