// SPDX-License-Identifier: Apache-2.0
// Picks the kernel's dtype: half types are computed in f32.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::detail {

inline bool is_half(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }
inline at::ScalarType compute_type(const at::Tensor& tensor) { return is_half(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type(); }
// Contiguous, in the kernel's dtype; the tensor itself where it already is.
inline at::Tensor for_kernel(const at::Tensor& tensor, at::ScalarType type) { return tensor.to(type).contiguous(); }

// run(T{}) for f64 or f32.
template <class F>
void by_dtype(at::ScalarType type, const char* what, const F& run) {
  if (type == at::kFloat) return run(float{});
  HYPER_PARALLEL_CHECK(type == at::kDouble, what, ": dtype ", c10::toString(type), " (allowed: f64, f32, bf16, f16)");
  run(double{});
}

template <class... Tensors>
bool needs_graph(const Tensors&... tensors) {
  return at::GradMode::is_enabled() && (tensors.requires_grad() || ...);
}

}  // namespace hyper_parallel::detail
