// SPDX-License-Identifier: Apache-2.0
// Random ops draw from the counter generator by global element index (dtensor/random.h): the values don't depend on the mesh.
#include <ATen/TensorOperators.h>
#include <ATen/core/stack.h>
#include <ATen/ops/mul.h>

#include <cmath>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/dtensor/random.h"
#include "hyper_parallel/shard/propagate.h"

namespace hyper_parallel {
namespace {

using Kind = Distribution::Kind;

void check_generator(const OpCall& call) {
  const auto index = call.op->schema().argumentIndexWithName("generator");
  if (index && !call.arguments[*index].isNone()) call.fail("a generator with a DTensor; its values come from hyper_parallel::manual_seed");
}

// Once per propagation: calls find the kind in `numbers`.
Kind kind_of(const OpCall& call) {
  const std::string& name = call.op->schema().name();
  if (name == "aten::bernoulli_") return Kind::kBernoulli;
  return name == "aten::normal_" || name == "aten::randn_like" ? Kind::kNormal : Kind::kUniform;
}

[[noreturn]] void fail(const c10::OperatorHandle& op, const std::string& why) { throw LayoutError(op.schema().name() + ": " + why); }

void check(const Distribution& distribution, const c10::OperatorHandle& op) {
  const auto [kind, a, b] = distribution;
  if (kind == Kind::kUniform && !std::isfinite(b - a)) fail(op, str("from ", a, " to ", b, " (expected a finite range)"));
  if (kind == Kind::kUniform && !(a <= b)) fail(op, str("from ", a, " to ", b, " (expected from <= to)"));
  if (kind == Kind::kNormal && !(b >= 0)) fail(op, str("std ", b, " (expected at least 0)"));
  if (kind == Kind::kBernoulli && !(a >= 0 && a <= 1)) fail(op, str("p ", a, " (expected 0 to 1)"));
}

void fill_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const size_t count = op.schema().arguments().size();
  const c10::IValue* arguments = stack.data() + stack.size() - count;
  Distribution distribution{Kind(propagation.numbers[0]), arguments[1].toDouble()};
  if (distribution.kind != Kind::kBernoulli) distribution.b = arguments[2].toDouble();  // bernoulli_ takes one number
  check(distribution, op);
  fill_random(arguments[0].toTensor(), propagation.inputs[0], next_random_stream(), distribution);
  torch::jit::drop(stack, count - 1);
}

void random_in_place_rule(const OpCall& call, Factorization& f) {
  check_generator(call);
  const Spec* spec = call.tensors[0].spec;
  if (spec->has_partial()) call.fail("random values can't fill a Partial tensor; call reduce_partial() first");
  if (kind_of(call) != Kind::kBernoulli && !c10::isFloatingType(spec->dtype())) call.fail("fills floating-point tensors only");
  f.decision = Factorization::Decision{{spec->placements()}, {spec->placements()}};
  f.numbers = {int64_t(kind_of(call))};
  f.local_call = fill_local;
}

void make_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  at::Tensor local = random_local(propagation.out, next_random_stream(), {Kind(propagation.numbers[0]), 0, 1});
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(std::move(local));
}

void random_like_rule(const OpCall& call, Factorization& f) {
  check_generator(call);
  auto placements = call.tensors[0].spec->placements();
  for (Placement& placement : placements)
    if (placement.is_partial()) placement = replicate();
  const auto dtype = call.op->schema().argumentIndexWithName("dtype");
  const bool asked = dtype && !call.arguments[*dtype].isNone();
  if (!c10::isFloatingType(asked ? call.arguments[*dtype].toScalarType() : call.tensors[0].spec->dtype()))
    call.fail("gives floating-point tensors only");
  f.decision = Factorization::Decision{{call.tensors[0].spec->placements()}, {placements}};
  f.numbers = {int64_t(kind_of(call))};
  f.local_call = make_local;
}

void drop_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const size_t count = op.schema().arguments().size();
  const c10::IValue* arguments = stack.data() + stack.size() - count;
  const at::Tensor& input = arguments[0].toTensor();
  const double keep = 1 - arguments[1].toDouble();
  const bool train = arguments[2].isNone() || arguments[2].toBool();
  at::Tensor mask = random_local(propagation.outputs[1], next_random_stream(), {Kind::kBernoulli, train ? keep : 1.0, 0});
  at::Tensor output = !train ? input.clone() : keep == 0 ? input * 0.0 : at::mul(input, mask).mul_(1 / keep);
  torch::jit::drop(stack, count);
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
