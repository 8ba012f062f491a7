// SPDX-License-Identifier: Apache-2.0
// The rows of ops/*.yaml. Keys of a row:
//
//   aten::addmm: { rule: "m? n?, m k, k n -> m n", linear: "0 + 1 * 2", doc: "...", example: "R, S(1), S(0) -> P(sum)" }
//
//   rule     factor notation, `pointwise`, `reduce`, `foreach`, `replicate`, `dynamic`, or the name of a function in ops/*.cpp
//   each     of `foreach`: the rule of one list index (default pointwise)
//   linear   the op as a sum of products of its tensor arguments (numbers count tensors); lets Partial through
//   reduce   what combines shards of a reduced factor: sum (default), avg, max, min, prod; none: reduced dims must not be sharded
//   whole    an argument with dims of tensor 0 (an int or a list; None is all) that must not be sharded
//   empty    false: no rank may have an empty shard; true: max and min too may have one (any, all)
//   writes   arguments that the op changes though its schema doesn't say so; `reads`: those that it doesn't though the schema says so
//   plain    arguments that are plain tensors with dims, equal on every rank
//   keep     arguments of type Scalar or float whose value the rule needs (others don't enter the cache key)
//   doc, example   for docs/ops.md
//
// Notation: one group of letters per tensor argument, `...` any number of leading dims (broadcast), `x?` a dim that may have size 1
// or, in front, be missing, `1` a dim that stays whole, an uppercase letter a factor that must not be sharded; `_` alone a tensor that is
// whole on every rank.
//
// `replicate`: all inputs whole, every rank computes everything. `dynamic`: so too, for ops whose output shape depends on values (nonzero).
//
// A row holds for other forms of its op too, unless they have rows: in place (`abs_`), out= (`abs.out`), `_copy` of views.
// Errors: LayoutError with file and line.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hyper_parallel/shard/op_rule.h"

namespace hyper_parallel {

struct NotationDim {
  std::string factor;  // "..." for the leading dims, "1" for none
  bool broadcast = false;
};
using NotationTensor = std::vector<NotationDim>;
struct Notation {
  std::vector<NotationTensor> inputs, outputs;
};

struct OpRow {
  std::string op;  // "aten::mm", "aten::add.Tensor"
  std::string file;
  int line = 0;
  // kOut: calls `functional`, the op without out tensors, and copies; kInplaceView: calls it and takes over the result.
  enum class Kind : uint8_t { kNotation, kPointwise, kReduce, kForeach, kReplicate, kDynamic, kFunction, kOut, kInplaceView };
  Kind kind = Kind::kPointwise, each = Kind::kPointwise;
  Notation notation;
  RuleFunction function = nullptr;
  std::vector<std::vector<int>> terms;
  std::optional<ReduceOp> reduce = ReduceOp::kSum;
  std::string whole, functional;
  std::optional<bool> empty;
  std::vector<std::string> keep, writes, reads, plain;
  std::string rule, linear, doc, example;  // as written
};

// Adds the rows of one YAML text, not yet compared with the ops' schemas; `file` is for messages.
void parse_op_rows(std::string_view text, const std::string& file, std::map<std::string, OpRow>& rows);
// Compares a row with its op's schema: unknown ops, wrong numbers of tensors, unknown argument names.
void check_op_row(const OpRow& row);
// Adds rows for the in-place, out= and _copy forms of the ops that have one.
void add_other_forms(std::map<std::string, OpRow>& rows);
// All rows: the embedded ones, parsed once, and those of user files (rules.h).
const std::map<std::string, OpRow>& op_rows();
// Applies a row to a call.
Factorization factorize(const OpRow& row, const OpCall& call);

}  // namespace hyper_parallel
