// SPDX-License-Identifier: Apache-2.0
// The rows of ops/*.yaml. Keys of a row:
//
//   aten::addmm: { rule: "m? n?, m k, k n -> m n", linear: "0 + 1 * 2", doc: "...", example: "R, S(1), S(0) -> P(sum)" }
//
//   rule     factor notation, `pointwise`, `reduce`, `foreach`, or the name of a function in ops/*.cpp
//   linear   the op as a sum of products of its tensor arguments (numbers count tensors); lets Partial through
//   reduce   what combines shards of a reduced factor: sum (default), avg, max, min, prod
//   whole    a dim argument whose dim must not be sharded
//   keep     arguments of type Scalar or float whose value the rule needs (others don't enter the cache key)
//   like     of ops without a meta kernel: the tensor arguments whose promoted dtype the output has (default: the first)
//   doc, example   for docs/ops.md
//
// Notation: one group of letters per tensor argument, `...` any number of leading dims (broadcast), `x?` a dim that may have size 1
// or, in front, be missing, `1` a dim that stays whole, an uppercase letter a factor that must not be sharded.
// Errors: LayoutError with file and line.
#pragma once
#include <map>
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
  enum class Kind : uint8_t { kNotation, kPointwise, kReduce, kForeach, kFunction };
  Kind kind = Kind::kPointwise;
  Notation notation;
  RuleFunction function = nullptr;
  std::vector<std::vector<int>> terms;
  ReduceOp reduce = ReduceOp::kSum;
  std::string whole;
  std::vector<std::string> keep;
  std::vector<int> like;
  std::string rule, linear, doc, example;  // as written
};

// Adds the rows of one YAML text; `file` is for messages.
void parse_op_rows(std::string_view text, const std::string& file, std::map<std::string, OpRow>& rows);
// All embedded rows, parsed once.
const std::map<std::string, OpRow>& op_rows();
// Applies a row to a call.
Factorization factorize(const OpRow& row, const OpCall& call);

}  // namespace hyper_parallel
