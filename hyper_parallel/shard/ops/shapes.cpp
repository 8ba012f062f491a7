// SPDX-License-Identifier: Apache-2.0
// Ops that pad, repeat, take diagonals or write into a part of a tensor: the dims that they work on stay whole, the others pass.
#include "hyper_parallel/shard/detail/rule_support.h"

namespace hyper_parallel {
namespace {

using namespace detail;

// constant_pad_nd(self, pad = (left, right) from the last dim on, value)
void pad_rule(const OpCall& call, Factorization& f) {
  const Shape& sizes = call.tensors[0].sizes;
  const Shape pad = call["pad"].toIntVector();
  f.inputs = {new_factors(sizes, f)};
  for (size_t pair = 0; 2 * pair + 1 < pad.size() && pair < sizes.size(); ++pair)
    if (pad[2 * pair] != 0 || pad[2 * pair + 1] != 0) f.inputs[0][sizes.size() - 1 - pair] = kNone;
  f.outputs = {f.inputs[0]};
  const c10::IValue& value = call["value"];
  if (value.isDouble() ? value.toDouble() == 0 : value.isInt() && value.toInt() == 0) f.terms = {{0}};
}

void repeat_rule(const OpCall& call, Factorization& f) {
  const Shape repeats = call["repeats"].toIntVector(), &sizes = call.tensors[0].sizes;
  if (repeats.size() < sizes.size()) call.fail("fewer repeats than dims");
  f.inputs = {no_factors(sizes)};
  f.outputs = {no_factors(repeats)};
  const size_t added = repeats.size() - sizes.size();
  for (size_t d = 0; d < sizes.size(); ++d)
    if (repeats[added + d] == 1) f.inputs[0][d] = f.outputs[0][added + d] = f.add_factor(sizes[d]);
}

// flip (dims) and roll (dims; none: of the flattened tensor)
void moved_dims_rule(const OpCall& call, Factorization& f) {
  const Shape dims = call["dims"].toIntVector();
  f.inputs = {dims.empty() && call.has("shifts") ? no_factors(call.tensors[0].sizes) : new_factors(call.tensors[0].sizes, f)};
  for (int64_t dim : dims)
    if (!f.inputs[0].empty()) f.inputs[0].at(wrapped(dim, f.inputs[0].size())) = kNone;
  f.outputs = {f.inputs[0]};
}

// The factors of `full` without two dims, and the diagonal last.
std::vector<int> diagonal_of(std::vector<int> full, int64_t dim1, int64_t dim2) {
  full.erase(full.begin() + std::max(dim1, dim2));
  full.erase(full.begin() + std::min(dim1, dim2));
  full.push_back(kNone);
  return full;
}

// diagonal, diagonal_copy, diagonal_scatter, diagonal_backward: dim1 and dim2 of the full tensor are whole.
void diagonal_rule(const OpCall& call, Factorization& f) {
  const bool backward = call.has("input_sizes"), scatter = call.has("src");
  const Shape full_sizes = backward ? call["input_sizes"].toIntVector() : call.tensors[0].sizes;
  const int64_t dim1 = wrapped(call["dim1"].toInt(), full_sizes.size()), dim2 = wrapped(call["dim2"].toInt(), full_sizes.size());
  auto full = new_factors(full_sizes, f);
  full.at(dim1) = full.at(dim2) = kNone;
  const auto diagonal = diagonal_of(full, dim1, dim2);
  if (scatter) {
    f.inputs = {full, diagonal};
    f.outputs = {full};
    f.terms = {{0}, {1}};
    return;
  }
  f.inputs = {backward ? diagonal : full};
  f.outputs = {backward ? full : diagonal};
  f.terms = {{0}};
  if (!backward) return;
  f.local_shape_argument = call.argument("input_sizes");
  f.values = {{full_sizes, {}, call.tensors[0].dtype}};
}

// diag_embed(self [..., n], offset, dim1, dim2)
void diag_embed_rule(const OpCall& call, Factorization& f) {
  const size_t dims = call.tensors[0].sizes.size() + 1;
  const int64_t dim1 = wrapped(call["dim1"].toInt(), dims), dim2 = wrapped(call["dim2"].toInt(), dims);
  f.inputs = {new_factors(call.tensors[0].sizes, f)};
  f.inputs[0].back() = kNone;
  std::vector<int> output(f.inputs[0].begin(), f.inputs[0].end() - 1);
  for (int64_t dim : {std::min(dim1, dim2), std::max(dim1, dim2)}) output.insert(output.begin() + dim, kNone);
  f.outputs = {output};
  f.terms = {{0}};
}

// select_scatter and slice_scatter(self, src, dim, ...)
void scatter_part_rule(const OpCall& call, Factorization& f) {
  auto full = new_factors(call.tensors[0].sizes, f);
  const int64_t dim = wrapped(call["dim"].toInt(), full.size());
  full.at(dim) = kNone;
  auto part = full;
  if (call.op->schema().name() == "aten::select_scatter") part.erase(part.begin() + dim);
  f.inputs = {full, part};
  f.outputs = {full};
  f.terms = {{0}, {1}};
}

// unfold(self, dimension, size, step) -> [..., windows, ..., size], and its gradient
void unfold_rule(const OpCall& call, Factorization& f) {
  const bool backward = call.has("input_sizes");
  const Shape sizes = backward ? call["input_sizes"].toIntVector() : call.tensors[0].sizes;
  auto full = new_factors(sizes, f);
  if (!full.empty()) full.at(wrapped(call[backward ? "dim" : "dimension"].toInt(), full.size())) = kNone;
  auto windows = full;
  windows.push_back(kNone);
  f.inputs = {backward ? windows : full};
  f.outputs = {backward ? full : windows};
  f.terms = {{0}};
  if (!backward) return;
  f.local_shape_argument = call.argument("input_sizes");
  f.values = {{sizes, {}, call.tensors[0].dtype}};  // it has no meta kernel
}

// Sizes and strides are those of the whole tensor.
void as_strided_rule(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  f.outputs = {no_factors(call["size"].toIntVector())};
}

HYPER_PARALLEL_OP_RULE("pad", pad_rule);
HYPER_PARALLEL_OP_RULE("repeat", repeat_rule);
HYPER_PARALLEL_OP_RULE("moved_dims", moved_dims_rule);
HYPER_PARALLEL_OP_RULE("diagonal", diagonal_rule);
HYPER_PARALLEL_OP_RULE("diag_embed", diag_embed_rule);
HYPER_PARALLEL_OP_RULE("scatter_part", scatter_part_rule);
HYPER_PARALLEL_OP_RULE("unfold", unfold_rule);
HYPER_PARALLEL_OP_RULE("as_strided", as_strided_rule);

}  // namespace
}  // namespace hyper_parallel
