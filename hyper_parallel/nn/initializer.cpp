// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/nn/initializer.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <cmath>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/philox.h"
#include "hyper_parallel/nn/module.h"

namespace hyper_parallel {
namespace {

// Rounding to odd first makes the second rounding (to a half type) exact.
float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (nearest == value || (std::bit_cast<uint32_t>(nearest) & 1) != 0) return nearest;
  return std::nextafter(nearest, nearest < value ? HUGE_VALF : -HUGE_VALF);
}

template <class T>
T rounded(double value) {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>)
    return static_cast<T>(value);
  else
    return static_cast<T>(round_to_odd(value));
}

template <class T>
void fill(T* out, int64_t count, const Initializer& initializer, const Philox& stream, int64_t begin) {
  switch (initializer.kind) {
    case Initializer::Kind::kConstant:
      std::fill_n(out, count, rounded<T>(initializer.a));
      return;
    case Initializer::Kind::kNormal:
      for (int64_t i = 0; i < count; ++i) out[i] = rounded<T>(initializer.a + initializer.b * stream.normal(begin + i));
      return;
    case Initializer::Kind::kUniform:
      for (int64_t i = 0; i < count; ++i) out[i] = rounded<T>(initializer.a + (initializer.b - initializer.a) * stream.uniform(begin + i));
      return;
  }
}

}  // namespace

void fill_initial(const at::Tensor& piece, const Initializer& initializer, uint64_t seed, const std::string& full_name, int64_t begin) {
  HYPER_PARALLEL_CHECK(piece.is_contiguous() && piece.is_cpu(), full_name, ": initial values go to a contiguous CPU tensor");
  const Philox stream(seed, full_name);
  const int64_t count = piece.numel();
  switch (piece.scalar_type()) {
    case at::kDouble:
      return fill(piece.data_ptr<double>(), count, initializer, stream, begin);
    case at::kFloat:
      return fill(piece.data_ptr<float>(), count, initializer, stream, begin);
    case at::kBFloat16:
      return fill(piece.data_ptr<c10::BFloat16>(), count, initializer, stream, begin);
    case at::kHalf:
      return fill(piece.data_ptr<c10::Half>(), count, initializer, stream, begin);
    default:
      HYPER_PARALLEL_CHECK(false, full_name, ": no initial values for dtype ", c10::toString(piece.scalar_type()));
  }
}

void materialize(Module& root, const MaterializeOptions& options) {
  for (auto& [full_name, slot] : root.named_parameters()) {
    if (!slot->tensor.is_meta()) continue;
    at::Tensor values = at::empty(slot->sizes, at::TensorOptions(at::kCPU).dtype(options.dtype));
    fill_initial(values, slot->initializer, options.seed, full_name, 0);
    slot->tensor = values.set_requires_grad(slot->trainable);
  }
}

}  // namespace hyper_parallel
