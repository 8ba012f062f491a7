// SPDX-License-Identifier: Apache-2.0
// visit_tensors(value, f) calls f(at::Tensor&) for every tensor in a value: a tensor, vector or optional of tensors, tuple or pair of such,
// or a struct with a member `template <class F> void visit_tensors(F&& f)`.
#pragma once
#include <ATen/core/Tensor.h>

#include <concepts>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace hyper_parallel {
namespace internal {
template <class T>
struct IsTuple : std::false_type {};
template <class... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};
template <class A, class B>
struct IsTuple<std::pair<A, B>> : std::true_type {};
template <class T>
concept ListOfTensors = std::same_as<T, std::vector<at::Tensor>> || std::same_as<T, std::optional<at::Tensor>>;
template <class T>
concept VisitsTensors = requires(T& value) {
  value.visit_tensors([](at::Tensor&) {});
};
}  // namespace internal

template <class T>
concept TensorTree = std::same_as<T, at::Tensor> || internal::ListOfTensors<T> || internal::IsTuple<T>::value || internal::VisitsTensors<T>;

template <class T, class F>
void visit_tensors(T& value, F&& f) {
  if constexpr (std::same_as<T, at::Tensor>) {
    f(value);
  } else if constexpr (internal::VisitsTensors<T>) {
    value.visit_tensors(f);
  } else if constexpr (internal::IsTuple<T>::value) {
    std::apply([&](auto&... parts) { (visit_tensors(parts, f), ...); }, value);
  } else if constexpr (std::same_as<T, std::optional<at::Tensor>>) {
    if (value) f(*value);
  } else if constexpr (internal::ListOfTensors<T>) {
    for (at::Tensor& tensor : value) f(tensor);
  }
}

}  // namespace hyper_parallel
