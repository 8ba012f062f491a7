// SPDX-License-Identifier: Apache-2.0
// out= forms and in-place views, by way of the op's plain form.
#include <ATen/core/LegacyTypeDispatch.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/shard/detail/dispatch.h"

namespace hyper_parallel::detail {
namespace {

bool is_out(const c10::Argument& argument) { return argument.kwarg_only() && writes_to(argument); }

[[noreturn]] void fail(const c10::OperatorHandle& op, const std::string& why) {
  throw LayoutError(OpCall{&op, {}, {}, nullptr}.name() + ": " + why);
}

// copy_ moves the result to out's placements. An empty `out` takes the result's shape, as in ATen.
void store(const c10::OperatorHandle& op, const std::string& name, const at::Tensor& out, const at::Tensor& result) {
  DTensorImpl* impl = dtensor_impl(out);
  if (impl == nullptr) fail(op, str(name, " is a plain tensor, the other arguments are DTensors; distribute it first"));
  const DTensorImpl* value = dtensor_impl(result);
  if (value == nullptr) fail(op, "the result is a plain tensor");
  if (!c10::canCast(result.scalar_type(), out.scalar_type()))
    fail(op, str("result type ", c10::toString(result.scalar_type()), " can't be cast to ", name, "'s type ",
                 c10::toString(out.scalar_type())));
  if (out.sizes() == result.sizes()) {
    out.copy_(result);
    return;
  }
  if (out.numel() != 0 || out.scalar_type() != result.scalar_type())
    fail(op, str(name, " has shape ", bracketed(out.sizes()), ", the result ", bracketed(result.sizes())));
  impl->replace(value->local(), value->spec());
}

}  // namespace

void OutKernel::operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  const auto& schema = form_.schema();
  const size_t count = schema.arguments().size(), begin = stack->size() - count;
  Stack inputs, outs;
  std::vector<std::string> names;
  for (size_t index = 0; index < count; ++index) {
    const bool out = is_out(schema.arguments()[index]);
    (out ? outs : inputs).push_back((*stack)[begin + index]);
    if (out) names.push_back(schema.arguments()[index].name());
  }
  stack->resize(begin);
  at::AutoDispatchBelowADInplaceOrView below;
  functional_.callBoxed(&inputs);
  for (size_t index = 0; index < outs.size(); ++index) {
    if (outs[index].isTensor()) {
      store(form_, names[index], outs[index].toTensor(), inputs.at(index).toTensor());
      continue;
    }
    const auto targets = outs[index].toTensorVector(), results = inputs.at(index).toTensorVector();
    if (targets.size() != results.size()) fail(form_, str(names[index], " has ", targets.size(), " tensors, the result ", results.size()));
    for (size_t item = 0; item < targets.size(); ++item) store(form_, names[index], targets[item], results[item]);
  }
  if (schema.returns().empty()) return;
  for (c10::IValue& out : outs) stack->push_back(std::move(out));
}

void InplaceViewKernel::operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  const size_t count = form_.schema().arguments().size();
  const at::Tensor self = (*stack)[stack->size() - count].toTensor();
  at::AutoDispatchBelowADInplaceOrView below;
  functional_.callBoxed(stack);
  const DTensorImpl* view = dtensor_impl(stack->back().toTensor());
  DTensorImpl* impl = dtensor_impl(self);
  if (!view->local().is_alias_of(impl->local()))
    fail(form_, str("in place on ", impl->spec()->to_string(), ", which the op would have to redistribute; redistribute it first"));
  impl->replace(view->local(), view->spec());
  stack->back() = self;
}

}  // namespace hyper_parallel::detail
