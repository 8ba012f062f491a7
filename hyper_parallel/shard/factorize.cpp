// SPDX-License-Identifier: Apache-2.0
// From a row and the arguments of one call to factors: notation, pointwise and reduce. Functions of ops/*.cpp do the same for the rest.
#include <algorithm>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/shard/op_registry.h"

namespace hyper_parallel {
namespace {

bool is_whole_tensor(const NotationTensor& notation) { return !notation.empty() && notation[0].factor == "_"; }

// Names factors; "..." dims are counted from the right, so that they broadcast like numpy's.
class FactorTable {
 public:
  FactorTable(const OpCall& call, Factorization& result) : call_(call), result_(result) {}

  int find_or_add(const std::string& name, int64_t size, bool may_broadcast) {
    auto [found, fresh] = ids_.try_emplace(name, -1);
    if (fresh) {
      found->second = result_.add_factor(size);
      may_grow_.push_back(may_broadcast);
      result_.factors.back().whole = name.size() == 1 && std::isupper(name[0]);
      return found->second;
    }
    int64_t& known = result_.factors[found->second].size;
    if (known == size) {
      may_grow_[found->second] = may_grow_[found->second] && may_broadcast;
      return found->second;
    }
    if (known == 1 && (may_broadcast || may_grow_[found->second])) {
      known = size;
      may_grow_[found->second] = may_broadcast;
      return found->second;
    }
    if (size == 1 && may_broadcast) return found->second;
    call_.fail(str("dims of size ", known, " and ", size, " run over one factor `", name, "`"));
  }

  int find(const std::string& name) const {
    const auto found = ids_.find(name);
    return found == ids_.end() ? Factorization::kNone : found->second;
  }

  void bind(const NotationTensor& full, const Shape& sizes) {
    if (is_whole_tensor(full)) return;
    const NotationTensor notation = without_missing(full, sizes.size());
    const bool leading = !notation.empty() && notation[0].factor == "...";
    const size_t named = notation.size() - leading;
    if (leading ? sizes.size() < named : sizes.size() != named)
      call_.fail(str("a tensor has ", sizes.size(), " dims, the rule wants ", leading ? "at least " : "", named));
    const size_t batch = sizes.size() - named;
    for (size_t dim = 0; dim < batch; ++dim) find_or_add(str("...", batch - 1 - dim), sizes[dim], true);
    batch_dims_ = std::max(batch_dims_, batch);
    for (size_t dim = 0; dim < named; ++dim)
      if (notation[dim + leading].factor != "1")
        find_or_add(notation[dim + leading].factor, sizes[batch + dim], notation[dim + leading].broadcast);
  }

  // After all tensors are bound: the factor of each dim, none where the tensor broadcasts.
  std::vector<int> factors_of(const NotationTensor& full, const Shape& sizes) const {
    if (is_whole_tensor(full)) return std::vector<int>(sizes.size(), Factorization::kNone);
    const NotationTensor notation = without_missing(full, sizes.size());
    const bool leading = !notation.empty() && notation[0].factor == "...";
    const size_t batch = sizes.size() - (notation.size() - leading);
    std::vector<int> factors;
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      const int factor = find(dim < batch ? str("...", batch - 1 - dim) : notation[dim - batch + leading].factor);
      factors.push_back(factor >= 0 && result_.factors[factor].size == sizes[dim] ? factor : Factorization::kNone);
    }
    return factors;
  }

  std::vector<int> output_factors(const NotationTensor& notation) const {
    std::vector<int> factors;
    for (const auto& dim : notation) {
      if (dim.factor == "...")
        for (size_t batch = batch_dims_; batch-- > 0;) factors.push_back(find(str("...", batch)));
      else
        factors.push_back(find(dim.factor));
    }
    return factors;
  }

 private:
  // Dims with `?` may be missing in front.
  static NotationTensor without_missing(NotationTensor notation, size_t dims) {
    while (notation.size() > dims && notation[0].broadcast && notation[0].factor != "...") notation.erase(notation.begin());
    return notation;
  }

  const OpCall& call_;
  Factorization& result_;
  std::map<std::string, int> ids_;
  std::vector<bool> may_grow_;  // factors that only tensors have whose dim may be of size 1
  size_t batch_dims_ = 0;
};

void apply_notation(const Notation& notation, const OpCall& call, std::optional<ReduceOp> reduce, Factorization& result) {
  if (call.tensors.size() != notation.inputs.size())
    call.fail(str("the call has ", call.tensors.size(), " tensor arguments, the rule ", notation.inputs.size()));
  FactorTable table(call, result);
  for (size_t index = 0; index < call.tensors.size(); ++index)
    if (call.tensors[index].present) table.bind(notation.inputs[index], call.tensors[index].sizes);
  for (size_t index = 0; index < call.tensors.size(); ++index)
    result.inputs.push_back(call.tensors[index].present ? table.factors_of(notation.inputs[index], call.tensors[index].sizes)
                                                        : std::vector<int>());
  for (const auto& output : notation.outputs) {
    result.opaque.push_back(is_whole_tensor(output));
    result.outputs.push_back(result.opaque.back() ? std::vector<int>() : table.output_factors(output));
  }
  for (size_t factor = 0; factor < result.factors.size(); ++factor) {
    bool everywhere = true;
    for (size_t output = 0; output < result.outputs.size(); ++output) {
      const auto& dims = result.outputs[output];
      everywhere &= result.opaque[output] || std::find(dims.begin(), dims.end(), int(factor)) != dims.end();
    }
    if (!everywhere) result.factors[factor].reduce = reduce;
  }
}

void apply_pointwise(const OpCall& call, Factorization& result) {
  const NotationTensor all{{"...", true}};
  apply_notation({std::vector<NotationTensor>(call.tensors.size(), all), std::vector<NotationTensor>(call.num_outputs(), all)}, call,
                 ReduceOp::kSum, result);
  result.elementwise = true;
  const Shape* shape = nullptr;
  for (const TensorUse& use : call.tensors) {
    if (!use.present || use.sizes.empty()) continue;
    result.elementwise &= shape == nullptr || *shape == use.sizes;
    shape = &use.sizes;
  }
}

int64_t wrapped_dim(int64_t dim, size_t dims) { return dim < 0 ? dim + int64_t(std::max<size_t>(dims, 1)) : dim; }

std::vector<bool> reduced_dims(const OpCall& call, size_t dims) {
  std::vector<bool> reduced(dims, true);
  const auto argument = call.op->schema().argumentIndexWithName("dim");
  if (!argument || call.arguments[*argument].isNone()) return reduced;
  const c10::IValue& value = call.arguments[*argument];
  const Shape chosen = value.isInt() ? Shape{value.toInt()} : value.toIntVector();
  if (chosen.empty()) return reduced;
  std::fill(reduced.begin(), reduced.end(), false);
  for (int64_t dim : chosen)
    if (const int64_t index = wrapped_dim(dim, dims); index >= 0 && index < int64_t(dims)) reduced[index] = true;
  return reduced;
}

void apply_reduce(const OpRow& row, const OpCall& call, Factorization& result) {
  const Shape& sizes = call.tensors[0].sizes;
  const auto reduced = reduced_dims(call, sizes.size());
  const auto keep_argument = call.op->schema().argumentIndexWithName("keepdim");
  const bool keep = keep_argument && call.arguments[*keep_argument].toBool();
  std::vector<int> input, output;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    input.push_back(result.add_factor(sizes[dim]));
    if (reduced[dim]) {
      result.factors.back().reduce = row.reduce;
      result.factors.back().whole = !row.reduce;
      result.factors.back().non_empty = !row.empty.value_or(false) && (row.reduce == ReduceOp::kMax || row.reduce == ReduceOp::kMin);
      if (keep) output.push_back(Factorization::kNone);
    } else
      output.push_back(input.back());
  }
  result.elementwise = row.reduce && std::all_of(reduced.begin(), reduced.end(), [](bool one) { return one; }) && !keep;
  result.inputs = {input};
  result.inputs.resize(call.tensors.size());
  result.outputs.assign(call.num_outputs(), output);
}

void apply_replicate(const OpCall& call, bool dynamic, Factorization& result) {
  for (const TensorUse& use : call.tensors) result.inputs.emplace_back(use.sizes.size(), Factorization::kNone);
  result.outputs.resize(call.num_outputs());
  result.opaque.assign(call.num_outputs(), true);
  result.deferred = true;
  result.dynamic = dynamic;
}

// Such dims are not factors at all: the op may change their size.
void make_whole(const std::string& argument, const OpCall& call, Factorization& result) {
  const auto& factors = result.inputs[0];
  const c10::IValue& value = call[argument];
  Shape dims = value.isInt() ? Shape{value.toInt()} : value.isNone() ? Shape() : value.toIntVector();
  if (dims.empty() && !value.isInt())
    for (size_t dim = 0; dim < factors.size(); ++dim) dims.push_back(int64_t(dim));
  result.elementwise = false;
  const auto remove = [](std::vector<int>& from, int factor) { std::replace(from.begin(), from.end(), factor, Factorization::kNone); };
  for (int64_t dim : dims) {
    const int64_t index = wrapped_dim(dim, factors.size());
    if (index < 0 || index >= int64_t(factors.size()) || factors[index] < 0) continue;
    const int factor = factors[index];
    result.factors[factor].whole = true;
    for (auto& input : result.inputs) remove(input, factor);
    for (auto& output : result.outputs) remove(output, factor);
  }
}

}  // namespace

Factorization factorize(const OpRow& row, const OpCall& call) {
  Factorization result;
  result.terms = row.terms;
  switch (row.kind == OpRow::Kind::kForeach ? row.each : row.kind) {
    case OpRow::Kind::kNotation:
      apply_notation(row.notation, call, row.reduce, result);
      break;
    case OpRow::Kind::kReplicate:
    case OpRow::Kind::kDynamic:
      apply_replicate(call, row.kind == OpRow::Kind::kDynamic, result);
      break;
    case OpRow::Kind::kForeach:
    case OpRow::Kind::kOut:
    case OpRow::Kind::kInplaceView:
    case OpRow::Kind::kPointwise:
      apply_pointwise(call, result);
      break;
    case OpRow::Kind::kReduce:
      apply_reduce(row, call, result);
      break;
    case OpRow::Kind::kFunction:
      row.function(call, result);
      break;
  }
  if (!row.whole.empty()) make_whole(row.whole, call, result);
  if (row.empty == false)
    for (Factor& factor : result.factors) factor.non_empty = true;
  return result;
}

std::string OpCall::name() const {
  const auto& name = op->operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

int OpCall::argument(const std::string& argument_name) const {
  const auto index = op->schema().argumentIndexWithName(argument_name);
  HYPER_PARALLEL_CHECK(index, name(), " has no argument ", argument_name);
  return *index;
}

int OpCall::tensor(const std::string& argument_name) const {
  const int wanted = argument(argument_name);
  for (size_t index = 0; index < tensors.size(); ++index)
    if (tensors[index].argument == wanted) return int(index);
  fail("no tensor in " + argument_name);
}

size_t OpCall::num_outputs() const {
  size_t count = 0;
  for (const auto& result : op->schema().returns())
    count += result.type()->isSubtypeOf(*c10::TensorType::get()) || result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  return count;
}

void OpCall::fail(const std::string& why) const {
  std::string text = name() + ": " + why + "\n  arguments:";
  for (const TensorUse& use : tensors) {
    if (!use.present) continue;
    text += str("\n    ", op->schema().arguments()[use.argument].name(), use.list_index >= 0 ? str("[", use.list_index, "]") : "", ": ");
    text += use.spec ? use.spec->to_string() : str("plain ", c10::toString(use.dtype), " ", use.sizes);
  }
  throw LayoutError(text);
}

}  // namespace hyper_parallel
