// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/nn/initializer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
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

constexpr int64_t kBlock = 4096;  // elements kept as doubles before they are rounded

template <class T>
void fill_random(T* out, int64_t count, const Philox& stream, const Distribution& distribution, uint64_t begin) {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
    stream.fill(out, count, begin, distribution);
  } else {
    double exact[kBlock];
    for (int64_t done = 0; done < count; done += kBlock) {
      const int64_t block = std::min(kBlock, count - done);
      stream.fill(exact, block, begin + static_cast<uint64_t>(done), distribution);
      for (int64_t i = 0; i < block; ++i) out[done + i] = rounded<T>(exact[i]);
    }
  }
}

template <class T>
void fill(T* out, int64_t count, const Initializer& initializer, uint64_t seed, const std::string& full_name, int64_t begin) {
  if (initializer.kind == Initializer::Kind::kConstant) {
    std::fill_n(out, count, rounded<T>(initializer.a));
    return;
  }
  const bool normal = initializer.kind == Initializer::Kind::kNormal;
  fill_random(out, count, Philox(seed, full_name),
              {normal ? Distribution::Kind::kNormal : Distribution::Kind::kUniform, initializer.a, initializer.b},
              static_cast<uint64_t>(begin));
}

}  // namespace

void fill_initial(const at::Tensor& piece, const Initializer& initializer, uint64_t seed, const std::string& full_name, int64_t begin) {
  HYPER_PARALLEL_CHECK(piece.is_contiguous() && piece.is_cpu(), full_name, ": initial values go to a contiguous CPU tensor");
  const int64_t count = piece.numel();
  switch (piece.scalar_type()) {
    case at::kDouble:
      return fill(piece.data_ptr<double>(), count, initializer, seed, full_name, begin);
    case at::kFloat:
      return fill(piece.data_ptr<float>(), count, initializer, seed, full_name, begin);
    case at::kBFloat16:
      return fill(piece.data_ptr<c10::BFloat16>(), count, initializer, seed, full_name, begin);
    case at::kHalf:
      return fill(piece.data_ptr<c10::Half>(), count, initializer, seed, full_name, begin);
    default:
      HYPER_PARALLEL_CHECK(false, full_name, ": no initial values for dtype ", c10::toString(piece.scalar_type()));
  }
}

void fill_initial(const at::Tensor& piece, const Parameter& parameter, uint64_t seed, const std::string& full_name, int64_t begin) {
  int64_t done = 0;
  parameter.part().for_runs(parameter.sizes, begin, begin + piece.numel(), [&](int64_t whole_begin, int64_t count) {
    fill_initial(piece.narrow(0, done, count), parameter.initializer, seed, full_name, whole_begin);
    done += count;
  });
}

void materialize(Module& root, const MaterializeOptions& options) {
  for (auto& [full_name, slot] : root.named_parameters()) {
    if (!slot->tensor.is_meta()) continue;
    at::Tensor values = at::empty(slot->local_sizes(), at::TensorOptions(at::kCPU).dtype(options.dtype));
    fill_initial(values.view(-1), *slot, options.seed, full_name, 0);
    slot->tensor = values.set_requires_grad(slot->trainable);
  }
}

}  // namespace hyper_parallel
