// SPDX-License-Identifier: Apache-2.0
// Ops without a rule: an error, or every rank computes on gathered inputs.
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <set>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/log.h"
#include "hyper_parallel/shard/detail/dispatch.h"
#include "hyper_parallel/shard/policy.h"

namespace hyper_parallel::detail {
namespace {

[[noreturn]] void refuse(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  OpCall call{&op, arguments, {}, nullptr};
  std::string why = "this op has no sharding rule; add a row to a file of hyper_parallel/shard/ops (docs/adding_an_op.md says how)";
  std::vector<std::string> names = registered_ops();
  if (const std::string near = nearest_name(call.name(), names); !near.empty()) why += str("; the nearest op with a rule is ", near);
  try {
    call = make_call(op, arguments);
  } catch (const LayoutError&) {  // the missing rule is the news
  }
  call.fail(why);
}

bool tagged(const c10::OperatorHandle& op, at::Tag tag) {
  const auto tags = op.getTags();
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

// Gathers the arguments, and puts what was written back.
class Gathered {
 public:
  Gathered(const OpCall& call, c10::IValue* arguments) : call_(call), arguments_(arguments) {
    const std::vector<Placement> whole(call.mesh->num_axes());
    for (const TensorUse& use : call.tensors) {
      if (use.spec == nullptr) continue;
      const bool written = writes_to(call.op->schema().arguments()[use.argument]);
      if (written && use.spec->has_partial())
        call.fail(str("has no sharding rule, and writes to a Partial tensor; call reduce_partial() first"));
      const RedistributePlan& plan = redistribute_plan(use.spec, with_placements(use.spec, whole));
      bytes_sent_ += plan.bytes_sent();
      moves_.push_back({&use, &plan, written, {}, {}});
    }
  }
  int64_t bytes_sent() const { return bytes_sent_; }

  void run() {
    for (Move& move : moves_) {
      move.original = get(*move.use);
      const DTensorImpl* impl = dtensor_impl(move.original);
      const at::Tensor& local = impl ? impl->local() : move.original;
      move.whole = move.written && !move.plan->steps().empty() ? move.plan->run(local) : move.plan->run_aliasing(local);
      set(*move.use, move.whole);
    }
  }

  void put_back() {
    for (const Move& move : moves_) {
      if (!move.written) continue;
      if (move.whole.sizes().vec() != move.use->sizes) call_.fail("has no sharding rule, and changed the shape of what it writes to");
      if (move.plan->steps().empty()) continue;
      const RedistributePlan& back = redistribute_plan(move.plan->to(), move.use->spec);
      dtensor_impl(move.original)->local().copy_(back.run_aliasing(move.whole));
    }
  }

 private:
  struct Move {
    const TensorUse* use;
    const RedistributePlan* plan;
    bool written;
    at::Tensor original, whole;
  };

  at::Tensor get(const TensorUse& use) const {
    const c10::IValue& value = arguments_[use.argument];
    if (use.list_index < 0) return value.toTensor();
    return value.toListRef()[use.list_index].toTensor();
  }
  void set(const TensorUse& use, const at::Tensor& tensor) {
    c10::IValue& value = arguments_[use.argument];
    if (use.list_index < 0) {
      value = tensor;
    } else if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      tensors[use.list_index] = tensor;
      value = c10::List<at::Tensor>(tensors);
    } else {
      auto list = value.to<c10::List<std::optional<at::Tensor>>>().copy();
      list.set(use.list_index, tensor);
      value = list;
    }
  }

  const OpCall& call_;
  c10::IValue* arguments_;
  std::vector<Move> moves_;
  int64_t bytes_sent_ = 0;
};

at::Tensor wrap_whole(const at::Tensor& whole, const DeviceMesh& mesh) {
  if (!whole.defined() || dtensor_impl(whole)) return whole;
  return wrap_local(whole, intern_spec(Layout(mesh), whole.sizes().vec(), whole.scalar_type(), whole.strides().vec(), whole.device()));
}

void wrap_returns(const c10::OperatorHandle& op, const DeviceMesh& mesh, std::span<const c10::IValue> originals, Stack& stack) {
  const auto& schema = op.schema();
  c10::IValue* results = stack.data() + stack.size() - schema.returns().size();
  for (size_t index = 0; index < schema.returns().size(); ++index) {
    const auto* alias = schema.returns()[index].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      for (size_t argument = 0; argument < originals.size(); ++argument) {
        const auto* other = schema.arguments()[argument].alias_info();
        if (other != nullptr && *other == *alias) results[index] = originals[argument];
      }
    } else if (results[index].isTensor()) {
      results[index] = wrap_whole(results[index].toTensor(), mesh);
    } else if (results[index].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& whole : results[index].toTensorVector()) list.push_back(wrap_whole(whole, mesh));
      results[index] = std::move(list);
    }
  }
}

void warn_once(const c10::OperatorHandle& op, const DeviceMesh& mesh, int64_t bytes) {
  thread_local std::set<std::string> warned;
  const auto& name = op.operator_name();
  if (!warned.insert(name.name + "." + name.overload_name).second) return;
  for (int axis = 0; axis < mesh.num_axes(); ++axis)
    if (mesh.coordinate(axis) != 0) return;
  log_warning(OpCall{&op, {}, {}, nullptr}.name(), ": no sharding rule, computed on every rank (on_missing_rule: replicate); gathered ",
              bytes, " bytes");
}

}  // namespace

void run_without_rule(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  c10::IValue* arguments = stack->data() + stack->size() - count;
  if (shard_policy().on_missing_rule == MissingRule::kError) refuse(op, {arguments, count});
  const std::vector<c10::IValue> originals(arguments, arguments + count);
  const OpCall call = make_call(op, originals);
  if (tagged(op, at::Tag::nondeterministic_seeded)) call.fail("has no sharding rule, and random values would differ between ranks");
  if (tagged(op, at::Tag::inplace_view)) call.fail("has no sharding rule, and changes the shape of its input in place");
  Gathered gathered(call, arguments);
  warn_once(op, *call.mesh, gathered.bytes_sent());
  gathered.run();
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
  }
  gathered.put_back();
  wrap_returns(op, *call.mesh, originals, *stack);
}

}  // namespace hyper_parallel::detail
