// SPDX-License-Identifier: Apache-2.0
// zeros_like, new_empty and their kin: the output lies like the input, Partial axes replicated.
#include <ATen/ops/empty.h>

#include "hyper_parallel/shard/propagate.h"

namespace hyper_parallel {
namespace {

std::vector<Placement> without_partial(const Spec* spec) {
  auto placements = spec->placements();
  for (Placement& placement : placements)
    if (placement.is_partial()) placement = replicate();
  return placements;
}

void like_rule(const OpCall& call, Factorization& f) {
  f.decision = Factorization::Decision{{call.tensors[0].spec->placements()}, {without_partial(call.tensors[0].spec)}};
}

void new_rule(const OpCall& call, Factorization& f) {
  const bool same = call["size"].toIntVector() == call.tensors[0].sizes;
  f.decision = Factorization::Decision{{call.tensors[0].spec->placements()},
                                       {same ? without_partial(call.tensors[0].spec) : std::vector<Placement>(call.mesh->num_axes())}};
  f.local_shape_argument = call.argument("size");
}

void empty_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const size_t count = op.schema().arguments().size();
  const at::Tensor input = stack[stack.size() - count].toTensor();
  at::Tensor result = at::empty(propagation.out->local_shape(), input.options().dtype(propagation.out->dtype()));
  stack.resize(stack.size() - count);
  stack.emplace_back(std::move(result));
}

// Autograd makes gradients with it and fills them at once, so a Partial gradient may stay Partial.
void new_empty_strided_rule(const OpCall& call, Factorization& f) {
  const Spec* spec = call.tensors[0].spec;
  const Shape sizes = call["size"].toIntVector();
  const auto placements = sizes == spec->sizes() ? spec->placements() : std::vector<Placement>(call.mesh->num_axes());
  f.decision = Factorization::Decision{{spec->placements()}, {placements}};
  f.values = {{sizes, {}, call["dtype"].isNone() ? spec->dtype() : call["dtype"].toScalarType()}};
  f.local_call = empty_local;
}

HYPER_PARALLEL_OP_RULE("like", like_rule);
HYPER_PARALLEL_OP_RULE("new", new_rule);
HYPER_PARALLEL_OP_RULE("new_empty_strided", new_empty_strided_rule);

}  // namespace
}  // namespace hyper_parallel
