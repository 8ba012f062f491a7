// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/shard/detail/dispatch.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/comm_debug.h"
#include "hyper_parallel/shard/detail/matmul_autograd.h"
#include "hyper_parallel/shard/detail/redistribution_policy.h"

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

// The tensors of a list that move, moved together: one collective for all steps of a kind.
std::vector<at::Tensor> planned_list(const Propagation& propagation, size_t argument, std::vector<at::Tensor> tensors) {
  std::vector<const RedistributePlan*> plans;
  std::vector<at::Tensor> locals;
  std::vector<int> places;
  for (const InputPlan& plan : propagation.plans) {
    if (size_t(plan.argument) != argument) continue;
    if (plan.plan == nullptr) {
      tensors[plan.list_index] = neutral_scalar(tensors[plan.list_index]);
      continue;
    }
    plans.push_back(plan.plan);
    locals.push_back(local_of(tensors[plan.list_index]));
    places.push_back(plan.list_index);
  }
  locals = run_together(plans, std::move(locals));
  for (size_t index = 0; index < places.size(); ++index) tensors[places[index]] = locals[index];
  for (at::Tensor& tensor : tensors)
    if (tensor.defined()) tensor = at::Tensor(local_of(tensor));
  return tensors;
}

void unwrap_list(const Propagation& propagation, size_t argument, c10::IValue& value) {
  value = c10::IValue(c10::List<at::Tensor>(planned_list(propagation, argument, value.toTensorVector())));
}

void unwrap_optional_list(const Propagation& propagation, size_t argument, c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& item : value.toListRef()) tensors.push_back(item.isTensor() ? item.toTensor() : at::Tensor());
  c10::List<std::optional<at::Tensor>> locals;
  for (at::Tensor& local : planned_list(propagation, argument, std::move(tensors)))
    locals.push_back(local.defined() ? std::optional(std::move(local)) : std::nullopt);
  value = std::move(locals);
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
    else if (value.isOptionalTensorList())
      unwrap_optional_list(propagation, index, value);
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

const Spec* spec_of_result(const DeferredOutput& about, const Propagation& propagation, const at::Tensor& local) {
  if (!local.defined()) return nullptr;
  Shape sizes = about.local_shape ? local.sizes().vec() : about.sizes;
  for (size_t dim = 0; dim < sizes.size(); ++dim)
    if (sizes[dim] < 0) sizes[dim] = local.size(int64_t(dim));
  const Spec* like = propagation.inputs.empty() ? nullptr : propagation.inputs[0];
  const Shape strides = like != nullptr && like->sizes() == sizes ? like->strides() : Shape();
  return intern_spec(Layout(*propagation.mesh, about.placements), sizes, local.scalar_type(), strides, local.device());
}

// After the first local results: what meta tensors couldn't tell. Lists of a foreach op come list by list, its plans index by index.
void find_outputs(const OpInfo& info, const Propagation& propagation, const c10::IValue* results) {
  propagation.outputs.clear();
  size_t returned = 0, next = 0;
  bool contiguous = true;
  const size_t per_group = propagation.num_groups > 0 ? propagation.deferred_outputs.size() / size_t(propagation.num_groups) : 0;
  const bool one_a_return = propagation.deferred_outputs.size() == info.num_returns;  // a list of unknown length counts once
  for (size_t index = 0; index < info.num_returns; ++index) {
    if (!results[index].isTensor() && !results[index].isTensorList()) continue;
    const auto locals = results[index].isTensor() ? std::vector<at::Tensor>{results[index].toTensor()} : results[index].toTensorVector();
    for (size_t item = 0; item < locals.size(); ++item) {
      const size_t place = per_group > 0 ? item * per_group + returned : one_a_return ? returned : next;
      propagation.outputs.push_back(spec_of_result(propagation.deferred_outputs.at(place), propagation, locals[item]));
      contiguous &= locals[item].defined() && locals[item].is_contiguous() && propagation.outputs.back()->wrapper().plain_contiguous;
      ++next;
    }
    ++returned;
  }
  propagation.out = propagation.outputs.empty() ? nullptr : propagation.outputs[0];
  if (propagation.dynamic) return;
  propagation.deferred = false;
  propagation.simple = contiguous && propagation.plans.empty() && propagation.local_call == nullptr && propagation.reduce_target == nullptr;
}

void wrap_results(const OpInfo& info, const Propagation& propagation, const c10::IValue* originals, Stack& stack) {
  size_t next = 0;
  c10::IValue* results = stack.data() + stack.size() - info.num_returns;
  if (C10_UNLIKELY(propagation.deferred)) find_outputs(info, propagation, results);
  const auto wrap = [&](at::Tensor local) {
    const Spec* spec = propagation.outputs.at(next++);
    if (!local.defined()) return local;
    // The local op may choose other strides than the Spec tells everybody.
    if (!info.view && spec->wrapper().plain_contiguous && !local.is_contiguous()) local = local.contiguous();
    const DTensorImpl* base = info.view && originals[0].isTensor() ? dtensor_impl(originals[0].unsafeToTensorImpl()) : nullptr;
    return base ? wrap_view(std::move(local), spec, *base) : wrap_local(std::move(local), spec);
  };
  for (size_t index = 0; index < info.num_returns; ++index) {
    if (info.returned[index] >= 0)
      results[index] = originals[info.returned[index]];
    else if (results[index].isTensor())
      results[index] = wrap(std::move(results[index]).toTensor());
    else if (results[index].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& local : results[index].toTensorVector()) list.push_back(wrap(local));
      results[index] = std::move(list);
    }
  }
}

void write_back(const Propagation& propagation, const c10::IValue* originals, const std::vector<at::Tensor>& moved) {
  for (size_t index = 0; index < propagation.write_backs.size(); ++index) {
    const WriteBack& back = propagation.write_backs[index];
    const c10::IValue& value = originals[back.argument];
    const at::Tensor original = back.list_index < 0 ? value.toTensor() : at::Tensor(value.toTensorVector()[back.list_index]);
    local_of(original).copy_(back.plan->run_aliasing(moved[index]));
  }
}

// The tensors that the local op writes to in place of the originals: never memory that these share.
std::vector<at::Tensor> separate_written(const Propagation& propagation, c10::IValue* arguments) {
  std::vector<at::Tensor> moved;
  for (const WriteBack& back : propagation.write_backs) {
    c10::IValue& value = arguments[back.argument];
    if (back.list_index < 0) {
      value = value.toTensor().clone();
      moved.push_back(value.toTensor());
    } else {
      auto tensors = value.toTensorVector();
      tensors[back.list_index] = tensors[back.list_index].clone();
      moved.push_back(tensors[back.list_index]);
      value = c10::List<at::Tensor>(tensors);
    }
  }
  return moved;
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
  for (const auto& result : handle.schema().returns()) {
    returned.push_back(-1);
    const auto* alias = result.alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for (size_t index = 0; index < num_arguments; ++index) {
      const auto* other = handle.schema().arguments()[index].alias_info();
      if (other != nullptr && *other == *alias) returned.back() = int(index);
    }
  }
}

void check_view_memory(const at::Tensor& tensor) {
  if (torch::autograd::impl::get_view_autograd_meta(tensor) == nullptr) return;
  const DTensorImpl *view = dtensor_impl(tensor), *base = dtensor_impl(tensor._base().unsafeGetTensorImpl());
  if (view == nullptr || base == nullptr || view->local().is_alias_of(base->local())) return;
  throw LayoutError(str("in place on a view of ", base->spec()->to_string(), " that had to be redistributed, so it is a copy (",
                        view->spec()->to_string(), "); redistribute the tensor before taking the view"));
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
  const CauseScope cause(info.row->op);
  c10::SmallVector<c10::IValue, 8> originals;
  if (info.view)
    originals.push_back(arguments[0]);
  else if (info.written >= 0 || !propagation.write_backs.empty())
    originals.append(arguments, arguments + info.num_arguments);
  if (info.written >= 0 && arguments[info.written].isTensor()) check_written(arguments[info.written].toTensor());
  if (C10_UNLIKELY(propagation.bytes_sent > 0)) check_redistribution(info, propagation);
  if (propagation.reduce_target) reduce_target(info, *propagation.reduce_target, arguments[info.written]);
  unwrap_arguments(propagation, arguments, info.num_arguments);
  std::vector<at::Tensor> moved;
  if (C10_UNLIKELY(!propagation.write_backs.empty())) moved = separate_written(propagation, arguments);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    if (propagation.local_call)
      propagation.local_call(propagation, info.op, stack);
    else
      info.op.callBoxed(&stack);
  }
  if (C10_UNLIKELY(!moved.empty())) write_back(propagation, originals.data(), moved);
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

c10::OperatorHandle handle_of(const std::string& name) {
  const auto dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                        dot == std::string::npos ? "" : name.c_str() + dot + 1);
}

// Kernels stay for the life of the process, but for those that a user's row replaces.
std::unordered_map<c10::OperatorName, c10::RegistrationHandleRAII>& kernels() {
  static auto& handles = *new std::unordered_map<c10::OperatorName, c10::RegistrationHandleRAII>;
  return handles;
}

void set_kernel(const c10::OperatorHandle& op, c10::KernelFunction kernel) {
  kernels().erase(op.operator_name());
  kernels().emplace(op.operator_name(), c10::Dispatcher::singleton().registerImpl(op.operator_name(), kDTensorKey, std::move(kernel),
                                                                                  std::nullopt, nullptr, "hyper_parallel shard rule"));
}

torch::Library& typed_library() {
  static auto& library = *new torch::Library(torch::Library::IMPL, "aten", kDTensorKey, __FILE__, __LINE__);
  return library;
}

// A CompositeExplicit kernel would win over the fallback and run on a wrapper without storage.
void refuse_ops_without_row() {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    const auto handle = dispatcher.findSchema(name);
    if (!handle || op_rows().count(full)) continue;
    if (handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
        handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional))
      set_kernel(*handle, c10::KernelFunction::makeFromBoxedFunction<&run_without_rule>());
  }
}

void register_all() {
  register_matmul_autograd();
  auto& fallback = *new torch::Library(torch::Library::IMPL, "_", kDTensorKey, __FILE__, __LINE__);
  fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&run_without_rule>());
  auto& no_autograd = *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutogradPrivateUse2, __FILE__, __LINE__);
  no_autograd.fallback(torch::autograd::basicAutogradNotImplementedFallback());
  for (const auto& [name, row] : op_rows()) {
    check_op_row(row);
    register_row(row);
  }
  refuse_ops_without_row();
}

}  // namespace

void register_row(const OpRow& row) {
  const auto handle = handle_of(row.op);
  const OpInfo info(handle, row);
  using c10::KernelFunction;
  if (row.kind == OpRow::Kind::kOut)
    set_kernel(handle, KernelFunction::makeFromBoxedFunctor(std::make_unique<OutKernel>(handle, handle_of(row.functional))));
  else if (row.kind == OpRow::Kind::kInplaceView)
    set_kernel(handle, KernelFunction::makeFromBoxedFunctor(std::make_unique<InplaceViewKernel>(handle, handle_of(row.functional))));
  else if (!register_typed_views(typed_library(), info) && !register_typed_math(typed_library(), info))
    set_kernel(handle, KernelFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(info)));
}

void register_kernels() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

namespace {
[[maybe_unused]] const bool registered = (set_ensure_kernels(&register_kernels), true);
}  // namespace

}  // namespace hyper_parallel::detail
