// SPDX-License-Identifier: Apache-2.0
// Gradients of resampling: (gradient, output_size, input_size, ...) -> input_size, whose leading dims the local op must know.
#include "hyper_parallel/shard/detail/rule_support.h"

namespace hyper_parallel {
namespace {

using namespace detail;

void upsample_backward_rule(const OpCall& call, Factorization& f) {
  const Shape input = call["input_size"].toIntVector(), &gradient = call.tensors[0].sizes;
  f.inputs = {no_factors(gradient)};
  f.outputs = {no_factors(input)};
  for (size_t dim = 0; dim < 2; ++dim) {
    f.inputs[0][dim] = f.outputs[0][dim] = f.add_factor(input[dim]);
    f.factors.back().non_empty = true;
  }
  f.terms = {{0}};
  f.values = {{input, {}, call.tensors[0].dtype}};
  f.local_shape_argument = call.argument("input_size");
}

HYPER_PARALLEL_OP_RULE("upsample_backward", upsample_backward_rule);

}  // namespace
}  // namespace hyper_parallel
