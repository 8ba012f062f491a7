// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/shard/propagate.h"

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <limits>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

using Placements = std::vector<Placement>;
constexpr double kLatencyUs = 5, kBytesPerUs = 10'000, kLocalUs = 0.1;

// What one mesh axis asks of every input and gives to every output.
struct Candidate {
  Placements inputs, outputs;
};

bool has_factor(const std::vector<int>& dims, int factor) { return std::find(dims.begin(), dims.end(), factor) != dims.end(); }
int dim_of(const std::vector<int>& dims, int factor) { return int(std::find(dims.begin(), dims.end(), factor) - dims.begin()); }

class AxisChooser {
 public:
  AxisChooser(const OpCall& call, const Factorization& factorization, int written) : call_(call), rule_(factorization), written_(written) {
    used_ranks_.assign(rule_.factors.size(), 1);
  }

  Candidate choose(int axis) {
    axis_ = axis;
    best_cost_ = kImpossible;
    target_ = Target::kKeeps;
    offer_all();
    if (best_cost_ == kImpossible) {
      target_ = Target::kMoves;
      offer_all();
    }
    if (best_cost_ == kImpossible)
      call_.fail(str("in place on axis \"", call_.mesh->axis_names()[axis], "\": the result can't keep the placement ",
                     current(written_).to_string()));
    if (best_factor_ >= 0) used_ranks_[best_factor_] *= call_.mesh->size(axis);
    return best_;
  }

 private:
  static constexpr double kImpossible = std::numeric_limits<double>::infinity();
  enum class Target : uint8_t { kKeeps, kMoves };

  void offer_all() {
    offer(all(replicate()));
    for (int factor = 0; factor < int(rule_.factors.size()); ++factor) offer_factor(factor);
    offer_partial(ReduceOp::kSum);
    offer_partial(ReduceOp::kAvg);
    if (rule_.elementwise) offer_ragged();
  }

  bool keeps_target(const Candidate& candidate) const {
    if (written_ < 0) return true;
    const Placement& wanted = candidate.inputs[written_];
    if (target_ == Target::kMoves && wanted.is_partial()) return false;
    return (target_ == Target::kMoves || wanted == current(written_)) && (candidate.outputs.empty() || candidate.outputs[0] == wanted);
  }

  const Placement& current(size_t input) const {
    static const Placement replicated = replicate();
    return call_.tensors[input].spec ? call_.tensors[input].spec->placement(axis_) : replicated;
  }

  Candidate all(const Placement& placement) const {
    return {Placements(call_.tensors.size(), placement), Placements(rule_.outputs.size(), placement)};
  }

  double cost_of(size_t input, const Placement& wanted) const {
    const Placement& now = current(input);
    const Spec* spec = call_.tensors[input].spec;
    if (now == wanted || !call_.tensors[input].present) return 0;
    if (now.is_replicate() || spec == nullptr) return kLocalUs;
    const double size = double(call_.mesh->size(axis_));
    double bytes = double(spec->numel()) * double(c10::elementSize(spec->dtype()));
    for (int axis = 0; axis < call_.mesh->num_axes(); ++axis)
      if (!spec->placement(axis).is_replicate() && !spec->placement(axis).is_partial()) bytes /= double(call_.mesh->size(axis));
    if (now.is_partial())
      bytes *= (size - 1) / size * (wanted.is_replicate() ? 2 : 1);
    else
      bytes *= wanted.is_replicate() ? size - 1 : (size - 1) / size;
    return kLatencyUs + bytes / kBytesPerUs;
  }

  void offer(Candidate candidate, int factor = -1) {
    if (!keeps_target(candidate)) return;
    double cost = 0;
    for (size_t input = 0; input < candidate.inputs.size(); ++input) {
      if (candidate.inputs[input].is_partial() && current(input).is_partial() && !(candidate.inputs[input] == current(input))) return;
      if (candidate.inputs[input].is_partial() && !current(input).is_replicate() && !current(input).is_partial()) cost += 2 * kLatencyUs;
      cost += cost_of(input, candidate.inputs[input]);
    }
    if (cost >= best_cost_) return;
    best_ = std::move(candidate);
    best_cost_ = cost;
    best_factor_ = factor;
  }

  bool may_shard(int factor) const {
    const Factor& about = rule_.factors[factor];
    const int64_t size = call_.mesh->size(axis_), ranks = used_ranks_[factor] * size;
    if (about.whole || (about.even && about.size % ranks != 0)) return false;
    if (about.non_empty && chunk_of(about.size, ranks, ranks - 1).size() == 0) return false;
    return true;
  }

  void offer_factor(int factor) {
    if (!may_shard(factor)) return;
    Placements kinds{shard(0)};
    for (size_t input = 0; input < rule_.inputs.size(); ++input) {
      if (!has_factor(rule_.inputs[input], factor)) continue;
      const Placement& now = current(input);
      const Factor& about = rule_.factors[factor];
      if (now.kind == Placement::Kind::kStridedShard && now.dim == dim_of(rule_.inputs[input], factor) && !about.even && !about.contiguous)
        kinds.push_back(now);
    }
    for (const Placement& kind : kinds) offer_sharded(factor, kind);
  }

  void offer_sharded(int factor, const Placement& kind) {
    Candidate candidate = all(replicate());
    bool in_any_input = false;
    for (size_t input = 0; input < rule_.inputs.size(); ++input) {
      if (!call_.tensors[input].present || !has_factor(rule_.inputs[input], factor)) continue;
      candidate.inputs[input] = kind;
      candidate.inputs[input].dim = dim_of(rule_.inputs[input], factor);
      in_any_input = true;
    }
    if (!in_any_input) return;
    for (size_t output = 0; output < rule_.outputs.size(); ++output) {
      if (output < rule_.opaque.size() && rule_.opaque[output]) continue;
      if (has_factor(rule_.outputs[output], factor)) {
        candidate.outputs[output] = kind;
        candidate.outputs[output].dim = dim_of(rule_.outputs[output], factor);
      } else {
        if (!rule_.factors[factor].reduce) return;
        candidate.outputs[output] = partial(*rule_.factors[factor].reduce);
        if (!add_once(candidate, factor)) return;
      }
    }
    offer(std::move(candidate), factor);
  }

  // Terms of a sum that a reduced factor doesn't run through (addmm's bias) must count once over the axis, so they become Partial too.
  bool add_once(Candidate& candidate, int factor) const {
    for (const auto& term : rule_.terms) {
      const bool runs = std::any_of(term.begin(), term.end(), [&](int input) { return has_factor(rule_.inputs[input], factor); });
      if (runs || !call_.tensors[term[0]].present) continue;
      candidate.inputs[term[0]] = partial();
    }
    return true;
  }

  // In every product one factor is Partial: the one that is so already, else the first.
  void offer_partial(ReduceOp reduce) {
    const auto is_now = [&](int input) { return current(input) == partial(reduce); };
    bool any = false;
    Candidate candidate = all(replicate());
    for (const auto& term : rule_.terms) {
      if (!call_.tensors[term[0]].present) continue;
      const auto found = std::find_if(term.begin(), term.end(), is_now);
      any |= found != term.end();
      candidate.inputs[found != term.end() ? *found : term[0]] = partial(reduce);
    }
    if (!any) return;
    std::fill(candidate.outputs.begin(), candidate.outputs.end(), partial(reduce));
    offer(std::move(candidate));
  }

  void offer_ragged() {
    for (size_t input = 0; input < call_.tensors.size(); ++input) {
      if (!current(input).is_ragged()) continue;
      Candidate candidate = all(current(input));
      for (size_t other = 0; other < call_.tensors.size(); ++other)
        if (call_.tensors[other].sizes.empty()) candidate.inputs[other] = replicate();
      for (size_t output = 0; output < rule_.outputs.size(); ++output) {
        if (!rule_.outputs[output].empty()) continue;
        if (!rule_.factors[0].reduce || rule_.factors[0].non_empty) return;
        candidate.outputs[output] = partial(*rule_.factors[0].reduce);
      }
      offer(std::move(candidate));
    }
  }

  const OpCall& call_;
  const Factorization& rule_;
  int written_;
  int axis_ = 0;
  std::vector<int64_t> used_ranks_;
  Candidate best_;
  double best_cost_ = 0;
  int best_factor_ = -1;
  Target target_ = Target::kKeeps;
};

Factorization::Decision decide(const OpCall& call, const Factorization& rule, int written) {
  if (rule.decision) return *rule.decision;
  Factorization::Decision decision{std::vector<Placements>(call.tensors.size()), std::vector<Placements>(rule.outputs.size())};
  AxisChooser chooser(call, rule, written);
  for (int axis = 0; axis < call.mesh->num_axes(); ++axis) {
    const Candidate chosen = chooser.choose(axis);
    for (size_t input = 0; input < call.tensors.size(); ++input) decision.inputs[input].push_back(chosen.inputs[input]);
    for (size_t output = 0; output < rule.outputs.size(); ++output) decision.outputs[output].push_back(chosen.outputs[output]);
  }
  return decision;
}

// ---- global shapes, strides and dtypes: the op itself on meta tensors

at::Tensor meta_like(const at::Tensor& tensor) {
  at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()).device(at::kMeta));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

c10::IValue meta_value(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(meta_like(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(meta_like(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef())
      list.push_back(item.isTensor() && item.toTensor().defined() ? std::optional(meta_like(item.toTensor())) : std::nullopt);
    return list;
  }
  if (value.isDevice()) return c10::IValue(c10::Device(at::kMeta));
  return value;
}

void append_values(const c10::IValue& result, std::vector<OutputValue>& values) {
  if (result.isTensorList()) {
    for (const at::Tensor& tensor : result.toTensorVector()) append_values(tensor, values);
  } else if (result.isTensor() && result.toTensor().defined()) {
    const at::Tensor& tensor = result.toTensor();
    values.push_back({tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()});
  } else if (result.isTensor())
    values.push_back({});
}

// For ops without a meta kernel (relu), foreach ops, and where shapes depend on values.
void defer_outputs(const Factorization& rule, const Factorization::Decision& decision, Propagation& result) {
  result.deferred = true;
  result.dynamic = rule.dynamic;
  HYPER_PARALLEL_CHECK(rule.local_shape_argument < 0, "an output of unknown shape that sets a shape argument");
  for (size_t output = 0; output < decision.outputs.size(); ++output) {
    DeferredOutput& about = result.deferred_outputs.emplace_back();
    about.placements = decision.outputs[output];
    about.local_shape = (output < rule.opaque.size() && rule.opaque[output]) || output >= rule.outputs.size();
    if (!about.local_shape)
      for (int factor : rule.outputs[output]) about.sizes.push_back(factor < 0 ? -1 : rule.factors[factor].size);
  }
}

// Empty: the op has no meta kernel.
std::vector<OutputValue> output_values(const OpCall& call, const Factorization& rule) {
  if (!rule.values.empty()) return rule.values;
  std::vector<OutputValue> values;
  Stack stack;
  for (const c10::IValue& argument : call.arguments) stack.push_back(meta_value(argument));
  try {
    c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
    call.op->callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    return {};
  }
  for (const c10::IValue& result : stack) append_values(result, values);
  return values;
}

bool names(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool is_written(const OpRow& row, const c10::Argument& argument) {
  return (writes_to(argument) && !names(row.reads, argument.name())) || names(row.writes, argument.name());
}

void plan_written(const OpCall& call, const TensorUse& use, const Spec* wanted, const RedistributePlan& plan, bool is_target,
                  Propagation& result) {
  const std::string& name = call.op->schema().arguments()[use.argument].name();
  if (!use.spec->has_partial()) {
    result.plans.push_back({use.argument, use.list_index, &plan});
    result.write_backs.push_back({use.argument, use.list_index, &redistribute_plan(wanted, use.spec)});
  } else if (is_target && use.list_index < 0)
    result.reduce_target = &plan;
  else
    call.fail(str("writes to ", name, ", which is Partial; call reduce_partial() first"));
}

void plan_inputs(const OpRow& row, const OpCall& call, const Factorization& rule, const Factorization::Decision& decision, int target,
                 Propagation& result) {
  for (size_t input = 0; input < call.tensors.size(); ++input) {
    const TensorUse& use = call.tensors[input];
    if (use.spec == nullptr) {
      result.inputs.push_back(nullptr);
      for (int axis = 0; use.present && axis < call.mesh->num_axes(); ++axis)
        if (decision.inputs[input][axis] == partial() && call.mesh->coordinate(axis) != 0) {
          result.plans.push_back({use.argument, use.list_index, nullptr});
          break;
        }
      continue;
    }
    const Spec* wanted = with_placements(use.spec, decision.inputs[input]);
    result.inputs.push_back(wanted);
    if (wanted == use.spec) continue;
    const RedistributePlan& plan = redistribute_plan(use.spec, wanted, AllowPartial::kYes);
    result.cost_us += plan.cost_us();
    result.bytes_sent += plan.bytes_sent();
    if (!rule.writes_nothing && is_written(row, call.op->schema().arguments()[use.argument]))
      plan_written(call, use, wanted, plan, int(input) == target, result);
    else
      result.plans.push_back({use.argument, use.list_index, &plan});
  }
}

struct OpFacts {
  bool writes = false, view = false;
  int written_argument = -1;
};

OpFacts facts_of(const c10::OperatorHandle& op) {
  OpFacts facts;
  const auto& schema = op.schema();
  // An op that writes to something on the side (running statistics) isn't in place: its results are new tensors.
  const bool in_place = schema.returns().empty() || std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
                          return result.alias_info() != nullptr && result.alias_info()->isWrite();
                        });
  for (size_t index = 0; index < schema.arguments().size(); ++index) {
    if (schema.arguments()[index].alias_info() == nullptr) continue;
    if (!writes_to(schema.arguments()[index]))
      facts.view = true;
    else if (in_place && facts.written_argument < 0)
      facts.written_argument = int(index);
  }
  facts.writes = facts.written_argument >= 0;
  return facts;
}

void propagate_group(const OpRow& row, const OpCall& call, const OpFacts& facts, Propagation& result) {
  const Factorization rule = factorize(row, call);
  int written = -1;
  for (size_t input = 0; input < call.tensors.size(); ++input)
    if (call.tensors[input].argument == facts.written_argument) written = int(input);
  if (written >= 0 && call.tensors[written].spec == nullptr)
    call.fail("in place on a plain tensor with DTensor arguments; distribute it first");
  const auto decision = decide(call, rule, written);
  plan_inputs(row, call, rule, decision, written, result);
  result.share_local = rule.share_local;
  result.local_call = rule.local_call;
  result.numbers = rule.numbers;
  if (facts.writes || decision.outputs.empty()) return;
  std::vector<OutputValue> values;
  if (row.kind != OpRow::Kind::kForeach && !rule.deferred) values = output_values(call, rule);
  if (values.empty()) return defer_outputs(rule, decision, result);
  HYPER_PARALLEL_CHECK(values.size() == decision.outputs.size(), call.name(), ": the rule gives ", decision.outputs.size(),
                       " outputs, the op ", values.size());
  for (size_t output = 0; output < values.size(); ++output)
    result.outputs.push_back(intern_spec(Layout(*call.mesh, decision.outputs[output]), values[output].sizes, values[output].dtype,
                                         values[output].strides,
                                         call.tensors[0].spec ? call.tensors[0].spec->device() : c10::Device(c10::kCPU)));
  if (rule.local_shape_argument >= 0) {
    result.shape_argument = rule.local_shape_argument;
    const Shape& shape = result.outputs[0]->local_shape();
    result.shape.assign(shape.begin(), shape.end());
    result.boxed_shape = c10::IValue(shape);
  }
}

// A tensor that all list indices share can have one placement only: whole.
OpCall with_whole_shared(OpCall call, Propagation& result) {
  const std::vector<Placement> whole(call.mesh->num_axes());
  for (TensorUse& use : call.tensors) {
    if (use.list_index >= 0 || use.spec == nullptr || use.spec->placements() == whole) continue;
    const Spec* wanted = with_placements(use.spec, whole);
    const RedistributePlan& plan = redistribute_plan(use.spec, wanted);
    result.plans.push_back({use.argument, -1, &plan});
    result.bytes_sent += plan.bytes_sent();
    use.spec = wanted;
  }
  return call;
}

// A foreach op is one pointwise op per list index.
std::vector<OpCall> split_lists(const OpCall& call) {
  int length = 0;
  for (const TensorUse& use : call.tensors) length = std::max(length, use.list_index + 1);
  std::vector<OpCall> calls(length, OpCall{call.op, call.arguments, {}, call.mesh});
  for (const TensorUse& use : call.tensors)
    for (int index = 0; index < length; ++index)
      if (use.list_index < 0 || use.list_index == index) calls[index].tensors.push_back(use);
  return calls;
}

// Of an op on a mesh that this rank is not in: results without data; what it writes to stays as it is.
void give_empty_results(const Propagation& propagation, const c10::OperatorHandle& op, Stack& stack) {
  const c10::IValue first = stack[stack.size() - op.schema().arguments().size()];
  stack.resize(stack.size() - op.schema().arguments().size());
  size_t next = 0;
  const auto empty = [&] { return at::empty({0}, at::TensorOptions(propagation.outputs.at(next++)->dtype())); };
  for (const auto& returned : op.schema().returns()) {
    if (returned.alias_info() != nullptr && returned.alias_info()->isWrite()) {
      stack.push_back(first);
    } else if (returned.type()->kind() == c10::TypeKind::ListType) {
      c10::List<at::Tensor> list;
      while (next < propagation.outputs.size()) list.push_back(empty());
      stack.emplace_back(std::move(list));
    } else
      stack.emplace_back(empty());
  }
}

void stay_outside(const OpCall& call, Propagation& result) {
  result.plans.clear();
  result.write_backs.clear();
  result.reduce_target = nullptr;
  result.bytes_sent = 0;
  result.share_local = false;
  result.local_call = &give_empty_results;
  for (const DeferredOutput& about : result.deferred_outputs) {
    if (about.local_shape || std::find(about.sizes.begin(), about.sizes.end(), -1) != about.sizes.end())
      call.fail(str("this rank is not in ", call.mesh->to_string(), ", and only the values tell the result's shape"));
    result.outputs.push_back(intern_spec(Layout(*call.mesh, about.placements), about.sizes, call.tensors[0].dtype));
  }
  result.deferred = false;
}

}  // namespace

bool writes_to(const c10::Argument& argument) {
  const auto* alias = argument.alias_info();
  if (alias == nullptr) return false;
  const auto& contained = alias->containedTypes();
  return alias->isWrite() || std::any_of(contained.begin(), contained.end(), [](const auto& inner) { return inner.isWrite(); });
}

bool in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

OpCall make_call(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments, std::span<const std::string> plain) {
  OpCall call{&op, arguments, {}, nullptr};
  const auto add = [&](const at::Tensor& tensor, size_t argument, int list_index) {
    TensorUse use{nullptr, {}, at::kFloat, int(argument), list_index, tensor.defined()};
    if (tensor.defined()) {
      const DTensorImpl* impl = dtensor_impl(tensor);
      use.spec = impl ? impl->spec() : nullptr;
      use.sizes = tensor.sizes().vec();
      use.dtype = tensor.scalar_type();
    }
    call.tensors.push_back(std::move(use));
  };
  for (size_t index = 0; index < arguments.size(); ++index) {
    const c10::IValue& value = arguments[index];
    const auto& type = op.schema().arguments()[index].type();
    const bool tensor_type = type->isSubtypeOf(*c10::OptionalType::ofTensor());
    if (value.isTensor())
      add(value.toTensor(), index, -1);
    else if (value.isNone() && tensor_type)
      add(at::Tensor(), index, -1);
    else if (value.isTensorList()) {
      int position = 0;
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor, index, position++);
    } else if (value.isOptionalTensorList()) {
      int position = 0;
      for (const c10::IValue& item : value.toListRef()) add(item.isTensor() ? item.toTensor() : at::Tensor(), index, position++);
    }
  }
  for (const TensorUse& use : call.tensors)
    if (use.spec != nullptr && call.mesh == nullptr) call.mesh = &use.spec->mesh();
  for (TensorUse& use : call.tensors) {
    // Derivative formulas make plain zeros of the global shape, equal on every rank.
    if (std::find(plain.begin(), plain.end(), op.schema().arguments()[use.argument].name()) != plain.end() && use.spec == nullptr) continue;
    if (use.spec == nullptr && use.present && !use.sizes.empty() && call.mesh != nullptr && in_backward())
      use.spec = intern_spec(Layout(*call.mesh), use.sizes, use.dtype);
    if (use.spec != nullptr && !(use.spec->mesh() == *call.mesh)) call.fail("the arguments lie on different meshes");
    if (use.spec == nullptr && use.present && !use.sizes.empty() && !in_backward())
      call.fail("a plain tensor with dims among DTensors; distribute it first (distribute_tensor, from_local)");
  }
  return call;
}

Propagation propagate(const c10::OperatorHandle& op, const OpRow& row, std::span<const c10::IValue> arguments) {
  const OpCall call = make_call(op, arguments, row.plain);
  const OpFacts facts = facts_of(op);
  Propagation result;
  result.view = facts.view;
  result.mesh = call.mesh;
  if (row.kind == OpRow::Kind::kForeach) {
    const auto calls = split_lists(with_whole_shared(call, result));
    result.num_groups = int(calls.size());
    for (const OpCall& one : calls) propagate_group(row, one, facts, result);
  } else
    propagate_group(row, call, facts, result);
  if (call.mesh != nullptr && !call.mesh->contains_this_rank()) stay_outside(call, result);
  if (!result.outputs.empty()) result.out = result.outputs[0];
  result.simple = result.plans.empty() && result.local_call == nullptr && result.reduce_target == nullptr && !result.deferred;
  return result;
}

}  // namespace hyper_parallel
