// SPDX-License-Identifier: Apache-2.0
// Ops that read or write at given indices. Dims that aren't indexed pass through; the indexed dim of what is read from may be sharded where
// the op is a lookup (gather, embedding): each rank looks up what it has, and the sum is Partial.
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "hyper_parallel/shard/detail/rule_support.h"

namespace hyper_parallel {
namespace {

using namespace detail;

// ---- lookups in a sharded dim

// Indices into this rank's part of `dim`; those of other parts become 0 and `elsewhere`, bad ones stay bad so that the op complains.
struct LocalIndex {
  at::Tensor index, elsewhere;
};
LocalIndex to_local(const at::Tensor& index, const Spec* spec, int dim) {
  const int64_t size = spec->sizes()[dim];
  const auto parts = dim_intervals(spec->mesh(), spec->placements(), dim, size, own_coordinates(spec->mesh()));
  const int64_t begin = parts.empty() ? 0 : parts[0].begin, end = parts.empty() ? 0 : parts[0].end;
  const at::Tensor valid = index.ge(0).logical_and(index.lt(size));
  const at::Tensor elsewhere = valid.logical_and(index.lt(begin).logical_or(index.ge(end)));
  const at::Tensor local = (index - begin).masked_fill(elsewhere, 0).masked_fill(valid.logical_not(), size);
  return {local, elsewhere};
}

bool is_cut(const at::Tensor& local, const Spec* spec, int dim) {
  return spec != nullptr && local.dim() > 0 && local.size(dim) != spec->sizes()[dim];
}

void gather_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const at::Tensor self = local_argument(stack, op, size_t(0)).toTensor(), index = local_argument(stack, op, size_t(2)).toTensor();
  const int dim = int(propagation.numbers[0]);
  if (!is_cut(self, propagation.inputs[0], dim)) return op.callBoxed(&stack);
  const LocalIndex local = to_local(index, propagation.inputs[0], dim);
  at::Tensor result = self.size(dim) == 0 ? at::zeros(index.sizes(), self.options()) : at::gather(self, dim, local.index);
  replace_arguments(stack, op, result.masked_fill(local.elsewhere, 0));
}

void gather_rule(const OpCall& call, Factorization& f) {
  const Shape &self = call.tensors[0].sizes, &index = call.tensors[1].sizes;
  const int64_t dim = wrapped(call["dim"].toInt(), self.size());
  start_whole(call, f);
  auto output = no_factors(index);
  for (int64_t d = 0; d < int64_t(index.size()); ++d) {
    const bool other = d != dim && d < int64_t(self.size());
    if (index[d] == 1 || (other && self[d] != index[d])) continue;
    output[d] = f.inputs[1][d] = f.add_factor(index[d]);
    if (other) f.inputs[0][d] = output[d];
  }
  if (!self.empty() && self[dim] > 1) {
    const int looked_up = f.inputs[0][dim] = f.add_factor(self[dim]);
    f.factors[looked_up].reduce = ReduceOp::kSum;
    f.factors[looked_up].contiguous = true;
  }
  f.outputs = {output};
  f.numbers = {dim};
  f.local_call = gather_local;
}

void embed_local(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const at::Tensor weight = local_argument(stack, op, size_t(0)).toTensor(), index = local_argument(stack, op, size_t(1)).toTensor();
  if (!is_cut(weight, propagation.inputs[0], 0)) return op.callBoxed(&stack);
  const LocalIndex local = to_local(index, propagation.inputs[0], 0);
  Shape shape = index.sizes().vec();
  shape.push_back(weight.size(1));
  at::Tensor result = weight.size(0) == 0 ? at::zeros(shape, weight.options()) : at::embedding(weight, local.index);
  replace_arguments(stack, op, result.masked_fill(local.elsewhere.unsqueeze(-1), 0));
}

// embedding(weight [vocabulary, hidden], indices [...]) -> [..., hidden]
void embedding_rule(const OpCall& call, Factorization& f) {
  const auto index = new_factors(call.tensors[1].sizes, f), weight = new_factors(call.tensors[0].sizes, f);
  if (weight[0] >= 0) {
    f.factors[weight[0]].reduce = ReduceOp::kSum;
    f.factors[weight[0]].contiguous = true;
  }
  auto output = index;
  output.push_back(weight[1]);
  f.inputs = {weight, index};
  f.outputs = {output};
  f.local_call = embed_local;
}

// embedding_dense_backward(gradient [..., hidden], indices [...], vocabulary, ...) -> [vocabulary, hidden]
void embedding_backward_rule(const OpCall& call, Factorization& f) {
  const auto index = new_factors(call.tensors[1].sizes, f);
  const bool by_frequency = call["scale_grad_by_freq"].toBool();
  for (int factor : index) {
    if (factor < 0) continue;
    f.factors[factor].reduce = ReduceOp::kSum;
    f.factors[factor].whole = by_frequency;
  }
  auto gradient = index;
  gradient.push_back(f.add_factor(call.tensors[0].sizes.back()));
  f.inputs = {gradient, index};
  f.outputs = {{kNone, gradient.back()}};
  f.terms = {{0}};
  f.values = {{{call["num_weights"].toInt(), call.tensors[0].sizes.back()}, {}, call.tensors[0].dtype}};
}

// ---- scatter and index_*: (self, dim, index, [source]) -> like self

bool adds(const OpCall& call) { return call.op->schema().name().find("_add") != std::string::npos; }

// scatter_add of sharded indices: every rank adds its own, the sum is Partial.
void scatter_rule(const OpCall& call, Factorization& f) {
  const Shape &self = call.tensors[0].sizes, &index = call.tensors[1].sizes;
  const int source = find_tensor(call, "src");
  const int64_t dim = wrapped(call["dim"].toInt(), self.size());
  start_whole(call, f);
  f.outputs = {no_factors(self)};
  const bool aligned = self.size() == index.size() && (source < 0 || call.tensors[source].sizes.size() == index.size());
  for (int64_t d = 0; aligned && d < int64_t(self.size()); ++d) {
    const bool same_source = source < 0 || call.tensors[source].sizes[d] == index[d];
    if (d == dim ? !(adds(call) && same_source && source >= 0) : !(same_source && self[d] == index[d])) continue;
    const int factor = f.inputs[1][d] = f.add_factor(index[d]);
    if (source >= 0) f.inputs[source][d] = factor;
    if (d == dim)
      f.factors[factor].reduce = ReduceOp::kSum;
    else
      f.inputs[0][d] = f.outputs[0][d] = factor;
  }
}

// index_select, index_add, index_copy, index_fill, index_reduce: `index` has one dim.
void index_dim_rule(const OpCall& call, Factorization& f) {
  const Shape& self = call.tensors[0].sizes;
  const int source = find_tensor(call, "source"), index = find_tensor(call, "index");
  const int64_t dim = wrapped(call["dim"].toInt(), self.size());
  const bool select = call.op->schema().name() == "aten::index_select";
  start_whole(call, f);
  f.outputs = {no_factors(self)};
  if (source >= 0 && call.tensors[source].sizes.size() != self.size()) return;
  for (int64_t d = 0; d < int64_t(self.size()); ++d) {
    if (d == dim) continue;
    const int factor = f.inputs[0][d] = f.outputs[0][d] = f.add_factor(self[d]);
    if (source >= 0) f.inputs[source][d] = factor;
  }
  if (self.empty() || call.tensors[index].sizes.size() != 1 || !(select || adds(call))) return;
  const int factor = f.inputs[index][0] = f.add_factor(call.tensors[index].sizes[0]);
  if (select) {
    f.outputs[0][dim] = factor;
  } else {
    f.inputs[source][dim] = factor;
    f.factors[factor].reduce = ReduceOp::kSum;
  }
}

// ---- self[indices]

struct Indexing {
  std::vector<bool> indexed;  // per dim of self
  std::vector<int> shared;    // the factors that the indices broadcast to
  Shape shared_sizes;
  std::vector<int> result;  // of self[indices]
  Shape result_sizes;
};

bool has_mask(const OpCall& call) {
  return std::any_of(call.tensors.begin(), call.tensors.end(), [](const TensorUse& use) {
    return use.list_index >= 0 && use.present && (use.dtype == at::kBool || use.dtype == at::kByte);
  });
}

void bind_indices(const OpCall& call, Indexing& indexing, Factorization& f) {
  size_t dims = 0;
  for (const TensorUse& use : call.tensors)
    if (use.list_index >= 0 && use.present) dims = std::max(dims, use.sizes.size());
  indexing.shared_sizes.assign(dims, 1);
  const auto place = [&](const TensorUse& use, size_t d) { return dims - use.sizes.size() + d; };
  for (const TensorUse& use : call.tensors)
    for (size_t d = 0; use.list_index >= 0 && use.present && d < use.sizes.size(); ++d)
      if (use.sizes[d] != 1) indexing.shared_sizes[place(use, d)] = use.sizes[d];
  indexing.shared = new_factors(indexing.shared_sizes, f);
  for (size_t tensor = 0; tensor < call.tensors.size(); ++tensor) {
    const TensorUse& use = call.tensors[tensor];
    for (size_t d = 0; use.list_index >= 0 && use.present && d < use.sizes.size(); ++d)
      if (use.sizes[d] != 1) f.inputs[tensor][d] = indexing.shared[place(use, d)];
  }
}

// The dims of the indices stand where the indexed dims stood if these are neighbours, else in front.
Indexing bind_indexing(const OpCall& call, Factorization& f) {
  const Shape& self = call.tensors[0].sizes;
  Indexing indexing{std::vector<bool>(self.size(), false), {}, {}, {}, {}};
  start_whole(call, f);
  int first = -1, last = -1, count = 0;
  for (const TensorUse& use : call.tensors) {
    if (use.list_index < 0 || !use.present) continue;
    if (size_t(use.list_index) >= self.size()) call.fail("too many indices");
    indexing.indexed[use.list_index] = true;
    first = first < 0 ? use.list_index : first;
    last = use.list_index;
    ++count;
  }
  bind_indices(call, indexing, f);
  const bool neighbours = last - first + 1 == count;
  const auto add_shared = [&] {
    indexing.result.insert(indexing.result.end(), indexing.shared.begin(), indexing.shared.end());
    indexing.result_sizes.insert(indexing.result_sizes.end(), indexing.shared_sizes.begin(), indexing.shared_sizes.end());
  };
  if (!neighbours) add_shared();
  for (int dim = 0; dim < int(self.size()); ++dim) {
    if (neighbours && dim == first) add_shared();
    if (indexing.indexed[dim]) continue;
    if (self[dim] != 1) f.inputs[0][dim] = f.add_factor(self[dim]);
    indexing.result.push_back(f.inputs[0][dim]);
    indexing.result_sizes.push_back(self[dim]);
  }
  return indexing;
}

void index_rule(const OpCall& call, Factorization& f) {
  if (has_mask(call)) {  // the result's shape depends on the mask
    start_whole(call, f);
    f.outputs.resize(1);
    f.opaque = {true};
    f.deferred = f.dynamic = true;
    return;
  }
  f.outputs = {bind_indexing(call, f).result};
  f.terms = {{0}};
}

// index_put(self, indices, values, accumulate): values broadcast to self[indices].
void index_put_rule(const OpCall& call, Factorization& f) {
  const Shape& self = call.tensors[0].sizes;
  const int values = call.tensor("values");
  if (has_mask(call)) {
    start_whole(call, f);
    f.outputs = {no_factors(self)};
    return;
  }
  const Indexing indexing = bind_indexing(call, f);
  const Shape& sizes = call.tensors[values].sizes;
  std::vector<bool> in_values(f.factors.size(), false);
  for (size_t d = 0; d < sizes.size() && d < indexing.result.size(); ++d) {
    const size_t place = indexing.result.size() - 1 - d, own = sizes.size() - 1 - d;
    const int factor = indexing.result[place];
    if (factor < 0 || sizes[own] != indexing.result_sizes[place]) continue;
    f.inputs[values][own] = factor;
    in_values[factor] = true;
  }
  for (int factor : indexing.shared) {
    if (factor < 0) continue;
    f.factors[factor].reduce = ReduceOp::kSum;
    f.factors[factor].whole = !call["accumulate"].toBool() || !in_values[factor];
  }
  f.outputs = {f.inputs[0]};
  f.terms = {{0}, {values}};
}

// searchsorted(sequence, values, sorter?): a 1-d sequence is shared by all values; else the leading dims go together.
void searchsorted_rule(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  const Shape &sequence = call.tensors[0].sizes, &values = call.tensors[1].sizes;
  const int sorter = find_tensor(call, "sorter");
  for (size_t d = 0; d < values.size(); ++d) {
    f.inputs[1][d] = f.add_factor(values[d]);
    if (sequence.size() < 2 || d + 1 == values.size()) continue;
    f.inputs[0][d] = f.inputs[1][d];
    if (sorter >= 0) f.inputs[sorter][d] = f.inputs[1][d];
  }
  f.outputs = {f.inputs[1]};
}

HYPER_PARALLEL_OP_RULE("gather", gather_rule);
HYPER_PARALLEL_OP_RULE("embedding", embedding_rule);
HYPER_PARALLEL_OP_RULE("embedding_backward", embedding_backward_rule);
HYPER_PARALLEL_OP_RULE("scatter", scatter_rule);
HYPER_PARALLEL_OP_RULE("index_dim", index_dim_rule);
HYPER_PARALLEL_OP_RULE("index", index_rule);
HYPER_PARALLEL_OP_RULE("index_put", index_put_rule);
HYPER_PARALLEL_OP_RULE("searchsorted", searchsorted_rule);

}  // namespace
}  // namespace hyper_parallel
