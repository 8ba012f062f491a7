// SPDX-License-Identifier: Apache-2.0
// Ops that keep the elements and rearrange dims, and ops that cut or join along one dim.
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/neg.h>

#include <algorithm>
#include <numeric>

#include "hyper_parallel/shard/propagate.h"

namespace hyper_parallel {
namespace {

constexpr int kNone = Factorization::kNone;

int64_t wrapped(int64_t dim, size_t dims) { return dim < 0 ? dim + int64_t(dims) : dim; }

// One factor per dim of tensor 0; dims of size 1 have none.
std::vector<int> factors_of_input(const OpCall& call, Factorization& f) {
  std::vector<int> factors;
  for (int64_t size : call.tensors[0].sizes) factors.push_back(size == 1 ? kNone : f.add_factor(size));
  f.inputs = {factors};
  f.inputs.resize(call.tensors.size());
  return factors;
}

void same_rule(const OpCall& call, Factorization& f) {
  f.outputs = {factors_of_input(call, f)};
  f.terms = {{0}};
  f.elementwise = true;
}

void detach_rule(const OpCall& call, Factorization& f) {
  Factorization::Decision decision{{call.tensors[0].spec->placements()}, {call.tensors[0].spec->placements()}};
  f.decision = decision;
  f.share_local = true;
  const Spec* spec = call.tensors[0].spec;
  f.values = {{spec->sizes(), spec->strides(), spec->dtype()}};
}

void permuted(const OpCall& call, Factorization& f, const std::vector<int64_t>& order) {
  const auto factors = factors_of_input(call, f);
  std::vector<int> output;
  for (int64_t dim : order) output.push_back(factors.at(wrapped(dim, factors.size())));
  f.outputs = {output};
}

void transpose_rule(const OpCall& call, Factorization& f) {
  const size_t dims = call.tensors[0].sizes.size();
  std::vector<int64_t> order(dims);
  std::iota(order.begin(), order.end(), 0);
  if (dims > 0) std::swap(order.at(wrapped(call["dim0"].toInt(), dims)), order.at(wrapped(call["dim1"].toInt(), dims)));
  permuted(call, f, order);
}

void t_rule(const OpCall& call, Factorization& f) {
  permuted(call, f, call.tensors[0].sizes.size() < 2 ? std::vector<int64_t>(call.tensors[0].sizes.size(), 0) : std::vector<int64_t>{1, 0});
}

void permute_rule(const OpCall& call, Factorization& f) { permuted(call, f, call["dims"].toIntVector()); }

void unsqueeze_rule(const OpCall& call, Factorization& f) {
  auto output = factors_of_input(call, f);
  output.insert(output.begin() + wrapped(call["dim"].toInt(), output.size() + 1), kNone);
  f.outputs = {output};
}

// A local dim may have size 1 where the global one has not: only the output's Spec knows which dims go.
void view_as_output(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const size_t count = op.schema().arguments().size();
  at::Tensor result = stack[stack.size() - count].toTensor().view(propagation.out->local_shape());
  stack.resize(stack.size() - count);
  stack.emplace_back(std::move(result));
}

void squeeze_rule(const OpCall& call, Factorization& f) {
  const auto factors = factors_of_input(call, f);
  const Shape& sizes = call.tensors[0].sizes;
  std::vector<bool> chosen(sizes.size(), true);
  if (const auto index = call.op->schema().argumentIndexWithName("dim")) {
    std::fill(chosen.begin(), chosen.end(), false);
    const auto dims =
        call.arguments[*index].isInt() ? std::vector<int64_t>{call.arguments[*index].toInt()} : call.arguments[*index].toIntVector();
    for (int64_t dim : dims)
      if (!sizes.empty()) chosen.at(wrapped(dim, sizes.size())) = true;
  }
  std::vector<int> output;
  for (size_t dim = 0; dim < sizes.size(); ++dim)
    if (!chosen[dim] || sizes[dim] != 1) output.push_back(factors[dim]);
  f.outputs = {output};
  f.local_call = view_as_output;
}

Shape view_sizes(const OpCall& call) {
  Shape sizes = call["size"].toIntVector();
  int64_t known = 1, total = 1;
  for (int64_t size : call.tensors[0].sizes) total *= size;
  for (int64_t size : sizes)
    if (size != -1) known *= size;
  for (int64_t& size : sizes)
    if (size == -1) size = known == 0 ? 0 : total / known;
  return sizes;
}

// Dims [in, in_end) of the input hold the same elements as dims [out, out_end) of the output. Only the outermost dims can stay sharded, and
// only where the ranks divide the smaller of the two.
void map_group(const Shape& from, size_t in, size_t in_end, const Shape& to, size_t out, size_t out_end, Factorization& f) {
  while (in < in_end && from[in] == 1) ++in;
  while (out < out_end && to[out] == 1) ++out;
  if (in >= in_end || out >= out_end) return;
  const int64_t larger = std::max(from[in], to[out]), smaller = std::min(from[in], to[out]);
  if (smaller == 0 || larger % smaller != 0) return;
  const int factor = f.add_factor(smaller);
  f.factors[factor].even = larger != smaller;
  f.inputs[0][in] = factor;
  f.outputs[0][out] = factor;
}

void view_rule(const OpCall& call, Factorization& f) {
  const Shape& from = call.tensors[0].sizes;
  const Shape to = view_sizes(call);
  f.inputs = {std::vector<int>(from.size(), kNone)};
  f.outputs = {std::vector<int>(to.size(), kNone)};
  f.local_shape_argument = call.argument("size");
  f.elementwise = from == to;
  size_t in = 0, out = 0;
  while (in < from.size() && out < to.size()) {
    size_t in_end = in + 1, out_end = out + 1;
    int64_t in_product = from[in], out_product = to[out];
    while (in_product != out_product) {
      if (in_product < out_product && in_end < from.size())
        in_product *= from[in_end++];
      else if (out_product < in_product && out_end < to.size())
        out_product *= to[out_end++];
      else
        return;
    }
    map_group(from, in, in_end, to, out, out_end, f);
    in = in_end;
    out = out_end;
  }
}

// reshape of something that can be viewed; the strides that it asks for are global ones.
void reshape_alias_rule(const OpCall& call, Factorization& f) {
  view_rule(call, f);
  f.local_call = view_as_output;
}

void expand_rule(const OpCall& call, Factorization& f) {
  const auto factors = factors_of_input(call, f);
  const size_t dims = call["size"].toIntVector().size();
  std::vector<int> output(dims - factors.size(), kNone);
  output.insert(output.end(), factors.begin(), factors.end());
  f.outputs = {output};
  f.local_shape_argument = call.argument("size");
}

void make_whole(Factorization& f, int factor) {
  if (factor >= 0) f.factors[factor].whole = true;
}

void select_rule(const OpCall& call, Factorization& f) {
  auto factors = factors_of_input(call, f);
  const int64_t dim = wrapped(call["dim"].toInt(), factors.size());
  make_whole(f, factors.at(dim));
  factors.erase(factors.begin() + dim);
  f.outputs = {factors};
}

void slice_rule(const OpCall& call, Factorization& f) {
  const auto factors = factors_of_input(call, f);
  const int64_t dim = wrapped(call["dim"].toInt(), factors.size());
  const auto &start = call["start"], &end = call["end"];
  const bool all =
      (start.isNone() || start.toInt() == 0) && (end.isNone() || end.toInt() >= call.tensors[0].sizes.at(dim)) && call["step"].toInt() == 1;
  if (!all) make_whole(f, factors.at(dim));
  f.outputs = {factors};
}

// Output `index` of several has the same factors; a dim of size 1 in one of them stays whole anyway.
void pieces_rule(const OpCall& call, Factorization& f) {
  auto factors = factors_of_input(call, f);
  const int64_t dim = wrapped(call["dim"].toInt(), factors.size());
  make_whole(f, factors.at(dim));
  const int64_t size = call.tensors[0].sizes.at(dim);
  int64_t count = size;
  if (call.op->schema().argumentIndexWithName("split_sizes"))
    count = int64_t(call["split_sizes"].toIntVector().size());
  else if (call.op->schema().argumentIndexWithName("split_size"))
    count = std::max<int64_t>(1, (size + call["split_size"].toInt() - 1) / std::max<int64_t>(1, call["split_size"].toInt()));
  else
    factors.erase(factors.begin() + dim);  // unbind
  f.outputs.assign(count, factors);
}

void cat_rule(const OpCall& call, Factorization& f) {
  const bool stack = call.op->schema().name() == "aten::stack";
  const size_t dims = call.tensors[0].sizes.size();
  const int64_t dim = wrapped(call["dim"].toInt(), dims + stack);
  std::vector<int> shared;
  for (size_t index = 0; index < dims; ++index)
    shared.push_back(!stack && int64_t(index) == dim ? kNone : f.add_factor(call.tensors[0].sizes[index]));
  for (const TensorUse& use : call.tensors) {
    if (use.sizes.size() != dims) call.fail("tensors with different numbers of dims");
    f.inputs.push_back(shared);
    f.terms.push_back({int(f.inputs.size()) - 1});
  }
  if (stack) shared.insert(shared.begin() + dim, kNone);
  f.outputs = {shared};
}

// view.dtype: the last dim changes its size with the element's.
void view_dtype_rule(const OpCall& call, Factorization& f) {
  auto factors = factors_of_input(call, f);
  if (!factors.empty() && c10::elementSize(call["dtype"].toScalarType()) != c10::elementSize(call.tensors[0].dtype)) factors.back() = kNone;
  f.inputs[0] = factors;
  f.outputs = {factors};
}

// A lazily conjugated local tensor would reach collectives as it is, so it is resolved at once.
void conjugated(const Propagation&, const c10::OperatorHandle& op, Stack& stack) {
  at::Tensor local = stack[stack.size() - op.schema().arguments().size()].toTensor();
  stack.back() = op.schema().name() == "aten::_conj" ? at::conj_physical(local) : at::neg(local);
}

void conj_rule(const OpCall& call, Factorization& f) {
  same_rule(call, f);
  f.local_call = conjugated;
}

// The gradient of slice and select: zeros around the given part.
void padded_backward_rule(const OpCall& call, Factorization& f) {
  const Shape sizes = call["input_sizes"].toIntVector();
  const int64_t dim = wrapped(call["dim"].toInt(), sizes.size());
  const bool select = call.op->schema().name() == "aten::select_backward";
  std::vector<int> input, output;
  for (int64_t index = 0; index < int64_t(sizes.size()); ++index) {
    const int factor = index == dim ? kNone : f.add_factor(sizes[index]);
    output.push_back(factor);
    if (index != dim || !select) input.push_back(factor);
  }
  f.inputs = {input};
  f.outputs = {output};
  f.local_shape_argument = call.argument("input_sizes");
  f.values = {{sizes, {}, call.tensors[0].dtype}};
  f.terms = {{0}};
}

HYPER_PARALLEL_OP_RULE("same", same_rule);
HYPER_PARALLEL_OP_RULE("detach", detach_rule);
HYPER_PARALLEL_OP_RULE("transpose", transpose_rule);
HYPER_PARALLEL_OP_RULE("t", t_rule);
HYPER_PARALLEL_OP_RULE("permute", permute_rule);
HYPER_PARALLEL_OP_RULE("unsqueeze", unsqueeze_rule);
HYPER_PARALLEL_OP_RULE("squeeze", squeeze_rule);
HYPER_PARALLEL_OP_RULE("view", view_rule);
HYPER_PARALLEL_OP_RULE("reshape_alias", reshape_alias_rule);
HYPER_PARALLEL_OP_RULE("expand", expand_rule);
HYPER_PARALLEL_OP_RULE("select", select_rule);
HYPER_PARALLEL_OP_RULE("slice", slice_rule);
HYPER_PARALLEL_OP_RULE("pieces", pieces_rule);
HYPER_PARALLEL_OP_RULE("view_dtype", view_dtype_rule);
HYPER_PARALLEL_OP_RULE("conj", conj_rule);
HYPER_PARALLEL_OP_RULE("cat", cat_rule);
HYPER_PARALLEL_OP_RULE("padded_backward", padded_backward_rule);

}  // namespace
}  // namespace hyper_parallel
