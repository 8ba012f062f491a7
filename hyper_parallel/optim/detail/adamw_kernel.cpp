// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction and errno: the bits are those of the plain scalar expression for every vector width.
#include "hyper_parallel/optim/detail/adamw_kernel.h"

#include <cmath>

namespace hyper_parallel::detail {
namespace {

template <class T>
[[gnu::always_inline]] inline void update(T* __restrict data, const T* __restrict grad, T* __restrict exp_avg, T* __restrict exp_avg_sq,
                                          int64_t numel, const AdamWFactors<T> f) {
  for (int64_t i = 0; i < numel; ++i) {
    const T g = grad[i] * f.gradient_scale;
    const T m = f.beta1 * exp_avg[i] + f.one_minus_beta1 * g;
    const T v = f.beta2 * exp_avg_sq[i] + f.one_minus_beta2 * (g * g);
    const T denominator = std::sqrt(v) / f.root_correction2 + f.epsilon;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    data[i] = data[i] * f.keep - f.step_size * (m / denominator);
  }
}

template <class T>
void update_baseline(T* data, const T* grad, T* exp_avg, T* exp_avg_sq, int64_t numel, const AdamWFactors<T>& factors) {
  update(data, grad, exp_avg, exp_avg_sq, numel, factors);
}

#if defined(__x86_64__)
#ifdef __clang__
#define HYPER_PARALLEL_AVX512 [[gnu::target("avx512f"), clang::min_vector_width(512)]]
#else
#define HYPER_PARALLEL_AVX512 [[gnu::target("avx512f,prefer-vector-width=512")]]
#endif
template <class T>
[[gnu::target("avx2")]] void update_avx2(T* data, const T* grad, T* exp_avg, T* exp_avg_sq, int64_t numel, const AdamWFactors<T>& factors) {
  update(data, grad, exp_avg, exp_avg_sq, numel, factors);
}

template <class T>
HYPER_PARALLEL_AVX512 void update_avx512(T* data, const T* grad, T* exp_avg, T* exp_avg_sq, int64_t numel, const AdamWFactors<T>& factors) {
  update(data, grad, exp_avg, exp_avg_sq, numel, factors);
}
#endif

template <class T>
auto choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return &update_avx512<T>;
  if (__builtin_cpu_supports("avx2")) return &update_avx2<T>;
#endif
  return &update_baseline<T>;
}

}  // namespace

void adamw_update(float* data, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t numel, const AdamWFactors<float>& factors) {
  static const auto chosen = choose<float>();
  chosen(data, grad, exp_avg, exp_avg_sq, numel, factors);
}

void adamw_update(double* data, const double* grad, double* exp_avg, double* exp_avg_sq, int64_t numel,
                  const AdamWFactors<double>& factors) {
  static const auto chosen = choose<double>();
  chosen(data, grad, exp_avg, exp_avg_sq, numel, factors);
}

}  // namespace hyper_parallel::detail
