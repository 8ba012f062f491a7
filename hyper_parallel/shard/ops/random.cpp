// SPDX-License-Identifier: Apache-2.0
// Random ops draw from the counter generator by global element index (dtensor/random.h): the values don't depend on the mesh.
#include <ATen/TensorOperators.h>

#include "hyper_parallel/dtensor/random.h"
#include "hyper_parallel/shard/propagate.h"

namespace hyper_parallel {
namespace {

void check_generator(const OpCall& call) {
  const auto index = call.op->schema().argumentIndexWithName("generator");
  if (index && !call.arguments[*index].isNone()) call.fail("a generator with a DTensor; its values come from hyper_parallel::manual_seed");
}

const c10::IValue* arguments_of(const Stack& stack, const c10::OperatorHandle& op) {
  return stack.data() + stack.size() - op.schema().arguments().size();
}

Distribution distribution_of(const c10::IValue* arguments, const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name == "aten::uniform_") return {Distribution::Kind::kUniform, arguments[1].toDouble(), arguments[2].toDouble()};
  if (name == "aten::normal_") return {Distribution::Kind::kNormal, arguments[1].toDouble(), arguments[2].toDouble()};
  if (name == "aten::bernoulli_") return {Distribution::Kind::kBernoulli, arguments[1].toDouble(), 0};
  return {name == "aten::randn_like" ? Distribution::Kind::kNormal : Distribution::Kind::kUniform, 0, 1};
}

void fill_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const c10::IValue* arguments = arguments_of(stack, op);
  at::Tensor local = arguments[0].toTensor();
  local.copy_(random_local(propagation.inputs[0], next_random_stream(), distribution_of(arguments, op)));
  stack.resize(stack.size() - op.schema().arguments().size());
  stack.emplace_back(std::move(local));
}

void random_in_place_rule(const OpCall& call, Factorization& f) {
  check_generator(call);
  if (call.tensors[0].spec->has_partial()) call.fail("random values can't fill a Partial tensor; call reduce_partial() first");
  f.decision = Factorization::Decision{{call.tensors[0].spec->placements()}, {call.tensors[0].spec->placements()}};
  f.local_call = fill_local;
}

void make_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  at::Tensor local = random_local(propagation.out, next_random_stream(), distribution_of(arguments_of(stack, op), op));
  stack.resize(stack.size() - op.schema().arguments().size());
  stack.emplace_back(std::move(local));
}

void random_like_rule(const OpCall& call, Factorization& f) {
  check_generator(call);
  auto placements = call.tensors[0].spec->placements();
  for (Placement& placement : placements)
    if (placement.is_partial()) placement = replicate();
  f.decision = Factorization::Decision{{call.tensors[0].spec->placements()}, {placements}};
  f.local_call = make_local;
}

void drop_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const c10::IValue* arguments = arguments_of(stack, op);
  const at::Tensor input = arguments[0].toTensor();
  const double keep = 1 - arguments[1].toDouble();
  const bool train = arguments[2].isNone() || arguments[2].toBool();
  const Spec* mask_spec = propagation.outputs[1];
  at::Tensor mask = random_local(mask_spec, next_random_stream(), {Distribution::Kind::kBernoulli, train ? keep : 1.0, 0});
  at::Tensor output = !train ? input.clone() : keep == 0 ? input * 0.0 : input * mask * (1 / keep);
  stack.resize(stack.size() - op.schema().arguments().size());
  stack.emplace_back(std::move(output));
  stack.emplace_back(std::move(mask));
}

void dropout_rule(const OpCall& call, Factorization& f) {
  const Spec* spec = call.tensors[0].spec;
  auto placements = spec->placements();
  for (Placement& placement : placements)
    if (placement.is_partial()) placement = replicate();
  f.decision = Factorization::Decision{{placements}, {placements, placements}};
  f.values = {{spec->sizes(), spec->strides(), spec->dtype()}, {spec->sizes(), spec->strides(), at::kBool}};
  f.local_call = drop_local;
}

HYPER_PARALLEL_OP_RULE("random_in_place", random_in_place_rule);
HYPER_PARALLEL_OP_RULE("random_like", random_like_rule);
HYPER_PARALLEL_OP_RULE("dropout", dropout_rule);

}  // namespace
}  // namespace hyper_parallel
