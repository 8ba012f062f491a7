// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/shard/detail/dispatch.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <algorithm>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/shard/detail/matmul_autograd.h"

namespace hyper_parallel::detail {
namespace {

bool is_number_type(c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

const at::Tensor& local_of(const at::Tensor& tensor) {
  const DTensorImpl* impl = dtensor_impl(tensor);
  return impl ? impl->local() : tensor;
}

at::Tensor neutral_scalar(const at::Tensor& scalar) {
  at::Tensor zero = at::zeros_like(scalar);
  if (scalar.unsafeGetTensorImpl()->is_wrapped_number()) zero.unsafeGetTensorImpl()->set_wrapped_number(true);
  return zero;
}

at::Tensor planned(const InputPlan& plan, const at::Tensor& tensor) {
  return plan.plan ? plan.plan->run_aliasing(local_of(tensor)) : neutral_scalar(tensor);
}

void unwrap_list(const Propagation& propagation, size_t argument, c10::IValue& value) {
  std::vector<at::Tensor> locals;
  for (const at::Tensor& tensor : value.toTensorVector()) locals.push_back(tensor);
  for (const InputPlan& plan : propagation.plans)
    if (size_t(plan.argument) == argument) locals[plan.list_index] = planned(plan, locals[plan.list_index]);
  for (at::Tensor& tensor : locals) tensor = at::Tensor(local_of(tensor));
  value = c10::IValue(c10::List<at::Tensor>(locals));
}

void unwrap_arguments(const Propagation& propagation, c10::IValue* arguments, size_t count) {
  for (size_t index = 0; index < count; ++index) {
    c10::IValue& value = arguments[index];
    if (value.isTensor()) {
      if (const DTensorImpl* impl = dtensor_impl(value.unsafeToTensorImpl())) {
        if (propagation.plans.empty()) {
          value = impl->local();
          continue;
        }
      } else if (propagation.plans.empty())
        continue;
      at::Tensor local = local_of(value.toTensor());
      for (const InputPlan& plan : propagation.plans)
        if (size_t(plan.argument) == index) local = planned(plan, value.toTensor());
      value = std::move(local);
    } else if (value.isTensorList())
      unwrap_list(propagation, index, value);
  }
  if (propagation.shape_argument >= 0) arguments[propagation.shape_argument] = propagation.boxed_shape;
}

// A view of the target would keep the old terms, so nothing else may share its memory.
void reduce_target(const OpInfo& info, const RedistributePlan& plan, const c10::IValue& target) {
  DTensorImpl* impl = dtensor_impl(target.unsafeToTensorImpl());
  if (impl->local().use_count() > 1 || impl->local().storage().use_count() > 1)
    throw LayoutError(str(info.row->op, ": in place on ", impl->spec()->to_string(),
                          ", which shares memory with other tensors; call reduce_partial() first"));
  impl->replace(plan.run(impl->local()), plan.to());
}

void wrap_results(const OpInfo& info, const Propagation& propagation, const c10::IValue* originals, Stack& stack) {
  size_t next = 0;
  c10::IValue* results = stack.data() + stack.size() - info.num_returns;
  const auto wrap = [&](at::Tensor local) {
    const Spec* spec = propagation.outputs.at(next++);
    if (!local.defined()) return local;
    const DTensorImpl* base = info.view && originals[0].isTensor() ? dtensor_impl(originals[0].unsafeToTensorImpl()) : nullptr;
    return base ? wrap_view(std::move(local), spec, *base) : wrap_local(std::move(local), spec);
  };
  const auto& schema = info.op.schema();
  for (size_t index = 0; index < info.num_returns; ++index) {
    const auto* alias = schema.returns()[index].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      for (size_t argument = 0; argument < info.num_arguments; ++argument) {
        const auto* other = schema.arguments()[argument].alias_info();
        if (other != nullptr && *other == *alias) results[index] = originals[argument];
      }
    } else if (results[index].isTensor())
      results[index] = wrap(std::move(results[index]).toTensor());
    else if (results[index].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& local : results[index].toTensorVector()) list.push_back(wrap(local));
      results[index] = std::move(list);
    }
  }
}

void no_rule(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  OpCall call{&op, {stack->data() + stack->size() - count, count}, {}, nullptr};
  std::string why = "this op has no sharding rule; add a row to a file of hyper_parallel/shard/ops (docs/adding_an_op.md says how)";
  std::vector<std::string> names = registered_ops();
  if (const std::string near = nearest_name(call.name(), names); !near.empty()) why += str("; the nearest op with a rule is ", near);
  try {
    call = make_call(op, call.arguments);
  } catch (const LayoutError&) {  // the missing rule is the news
  }
  call.fail(why);
}

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& handle, const OpRow& op_row)
    : op(handle), row(&op_row), num_arguments(handle.schema().arguments().size()), num_returns(handle.schema().returns().size()) {
  for (size_t index = 0; index < num_arguments; ++index) {
    const auto& argument = handle.schema().arguments()[index];
    const bool kept = std::find(op_row.keep.begin(), op_row.keep.end(), argument.name()) != op_row.keep.end();
    if (is_number_type(argument.type()) && !kept) dropped |= uint64_t(1) << index;
    if (argument.alias_info() == nullptr) continue;
    if (writes_to(argument))
      written = written < 0 ? int(index) : written;
    else
      view = true;
  }
}

const Propagation* miss(const OpInfo& info, const Key& key, std::span<const c10::IValue> arguments) {
  // An in-place op on a view is differentiated by replaying the view: as_strided, autograd's default, means nothing for shards. The flag is
  // the thread's, so it is set by the first DTensor view only.
  if (info.view) c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
  return cache().insert(key, propagate(info.op, *info.row, arguments));
}

void run_boxed(const OpInfo& info, const Propagation& propagation, Stack& stack) {
  c10::IValue* arguments = stack.data() + stack.size() - info.num_arguments;
  if (propagation.share_local) {
    const DTensorImpl* base = dtensor_impl(arguments[0].unsafeToTensorImpl());
    at::Tensor result = wrap_view(base->local(), propagation.out, *base);
    stack.resize(stack.size() - info.num_arguments);
    stack.emplace_back(std::move(result));
    return;
  }
  c10::SmallVector<c10::IValue, 8> originals;
  if (info.view)
    originals.push_back(arguments[0]);
  else if (info.written >= 0)
    originals.append(arguments, arguments + info.num_arguments);
  if (propagation.reduce_target) reduce_target(info, *propagation.reduce_target, arguments[info.written]);
  unwrap_arguments(propagation, arguments, info.num_arguments);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    if (propagation.local_call)
      propagation.local_call(propagation, info.op, stack);
    else
      info.op.callBoxed(&stack);
  }
  wrap_results(info, propagation, originals.data(), stack);
}

void BoxedKernel::operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  const c10::IValue* arguments = stack->data() + stack->size() - info_.num_arguments;
  const Propagation* propagation;
  {
    Key key(info_.row);
    for (size_t index = 0; index < info_.num_arguments; ++index) key.value(arguments[index], info_.dropped >> index & 1);
    propagation = cache().find(key);
    if (C10_UNLIKELY(propagation == nullptr || !key.cacheable())) propagation = miss(info_, key, {arguments, info_.num_arguments});
  }
  run_boxed(info_, *propagation, *stack);
}

namespace {

void register_row(torch::Library& aten, torch::Library& own, const OpRow& row) {
  const auto colons = row.op.find("::"), dot = row.op.find('.');
  const auto handle =
      c10::Dispatcher::singleton().findSchema({row.op.substr(0, dot), dot == std::string::npos ? "" : row.op.substr(dot + 1)});
  if (!handle) throw LayoutError(str("op ", row.op, ": libtorch has no such op\n  in ", row.file, ":", row.line));
  const OpInfo info(*handle, row);
  if (register_typed_views(aten, info) || register_typed_math(aten, info)) return;
  torch::Library& library = row.op.compare(0, colons, "aten") == 0 ? aten : own;
  library.impl(row.op.c_str() + colons + 2, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(info)));
}

// A CompositeExplicit kernel would win over the fallback and run on a wrapper without storage.
void refuse_ops_without_row(torch::Library& aten) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    const auto handle = dispatcher.findSchema(name);
    if (!handle || op_rows().count(full)) continue;
    if (handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
        handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional))
      aten.impl(full.c_str() + 6, torch::CppFunction::makeFromBoxedFunction<&no_rule>());
  }
}

void register_all() {
  register_matmul_autograd();
  auto& fallback = *new torch::Library(torch::Library::IMPL, "_", kDTensorKey, __FILE__, __LINE__);
  fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&no_rule>());
  auto& no_autograd = *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutogradPrivateUse2, __FILE__, __LINE__);
  no_autograd.fallback(torch::autograd::basicAutogradNotImplementedFallback());
  auto& aten = *new torch::Library(torch::Library::IMPL, "aten", kDTensorKey, __FILE__, __LINE__);
  auto& own = *new torch::Library(torch::Library::IMPL, "hyper_parallel", kDTensorKey, __FILE__, __LINE__);
  for (const auto& [name, row] : op_rows()) register_row(aten, own, row);
  refuse_ops_without_row(aten);
}

}  // namespace

void register_kernels() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

namespace {
[[maybe_unused]] const bool registered = (set_ensure_kernels(&register_kernels), true);
}  // namespace

}  // namespace hyper_parallel::detail
