// SPDX-License-Identifier: Apache-2.0
// Typed kernels: the boxed handler's steps from an op's C++ signature, without boxing. About 0.1 us over the plain op on a cache hit.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>

#include <tuple>

#include "hyper_parallel/shard/detail/dispatch.h"

namespace hyper_parallel::detail {

template <class Op, class Signature = typename Op::schema>
struct TypedKernel;

template <class Op, class Return, class... Arguments>
struct TypedKernel<Op, Return(Arguments...)> {
  static inline const OpInfo* info = nullptr;

  C10_ALWAYS_INLINE static const at::Tensor& local(const at::Tensor& tensor, const Propagation&) {
    const DTensorImpl* impl = dtensor_impl(tensor);
    return impl ? impl->local() : tensor;
  }
  C10_ALWAYS_INLINE static at::Tensor& local(at::Tensor& tensor, const Propagation&) {
    DTensorImpl* impl = dtensor_impl(tensor);
    return impl ? impl->local() : tensor;
  }
  C10_ALWAYS_INLINE static std::optional<at::Tensor> local(const std::optional<at::Tensor>& tensor, const Propagation& propagation) {
    return tensor ? std::optional<at::Tensor>(local(*tensor, propagation)) : std::nullopt;
  }
  C10_ALWAYS_INLINE static c10::SymIntArrayRef local(c10::SymIntArrayRef list, const Propagation& propagation) {
    return propagation.shape_argument >= 0 ? c10::SymIntArrayRef(propagation.shape) : list;
  }
  template <class T>
  C10_ALWAYS_INLINE static const T& local(const T& value, const Propagation&) {
    return value;
  }

  template <class T>
  C10_ALWAYS_INLINE static c10::DispatchKeySet keys(const T& value) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      const DTensorImpl* impl = dtensor_impl(value);
      return (impl ? impl->local() : value).key_set();
    } else if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
      return value ? keys(*value) : c10::DispatchKeySet();
    } else
      return {};
  }

  [[gnu::noinline, gnu::cold]] static const Propagation* box_and_miss(const Key& key, Arguments... arguments) {
    Stack stack;
    torch::jit::push(stack, arguments...);
    return miss(*info, key, stack);
  }

  // With redistributions or a local_call.
  [[gnu::noinline]] static Return run_slowly(const Propagation& propagation, Arguments... arguments) {
    Stack stack;
    torch::jit::push(stack, arguments...);
    run_boxed(*info, propagation, stack);
    if constexpr (std::is_same_v<Return, at::Tensor&>)
      return std::get<0>(std::tie(arguments...));
    else
      return std::move(stack.back()).toTensor();
  }

  static Return run(Arguments... arguments) {
    const Propagation* found;
    {
      Key key(info->row);
      uint64_t dropped = info->dropped;
      ((key.add(arguments, dropped & 1), dropped >>= 1), ...);
      found = cache().find(key);
      if (C10_UNLIKELY(found == nullptr || !key.cacheable())) found = box_and_miss(key, arguments...);
    }
    const Propagation& propagation = *found;
    auto& first = std::get<0>(std::tie(arguments...));
    if constexpr (sizeof...(Arguments) == 1 && std::is_same_v<Return, at::Tensor>) {
      if (propagation.share_local) return wrap_view(dtensor_impl(first)->local(), propagation.out, *dtensor_impl(first));
    }
    if (C10_UNLIKELY(!propagation.simple)) return run_slowly(propagation, arguments...);
    // No guard: the autograd or ADInplaceOrView kernel above us holds it, or there is none.
    const auto below = (keys(arguments) | ...) & c10::after_ADInplaceOrView_keyset;
    if constexpr (std::is_same_v<Return, at::Tensor&>) {
      check_written(first);
      Op::redispatch(below, local(arguments, propagation)...);
      return first;
    } else {
      if constexpr (std::is_same_v<decltype(first), const at::Tensor&>)
        if (propagation.view)
          return wrap_view(Op::redispatch(below, local(arguments, propagation)...), propagation.out, *dtensor_impl(first));
      return wrap_local(Op::redispatch(below, local(arguments, propagation)...), propagation.out);
    }
  }
};

template <class Op>
bool register_typed(torch::Library& library, const OpInfo& info) {
  const std::string_view schema = Op::schema_str;
  const std::string bare(schema.substr(0, schema.find('(')));
  if (info.row->op.substr(6) != bare) return false;
  TypedKernel<Op>::info = new OpInfo(info);
  library.impl(bare.c_str(), &TypedKernel<Op>::run);
  return true;
}

}  // namespace hyper_parallel::detail
