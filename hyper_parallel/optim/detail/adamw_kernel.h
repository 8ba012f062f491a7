// SPDX-License-Identifier: Apache-2.0
// The elementwise update of AdamW, for the instruction set of the CPU at hand.
#pragma once
#include <cstdint>

namespace hyper_parallel::detail {

// Rounded from f64 once a step.
template <class T>
struct AdamWFactors {
  T gradient_scale;
  T keep;  // 1 - learning_rate * weight_decay
  T beta1, one_minus_beta1;
  T beta2, one_minus_beta2;
  T root_correction2;  // sqrt(1 - beta2^step)
  T epsilon;
  T step_size;  // learning_rate / (1 - beta1^step)
};

// In place on `numel` elements of each array.
void adamw_update(float* data, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t numel, const AdamWFactors<float>& factors);
void adamw_update(double* data, const double* grad, double* exp_avg, double* exp_avg_sq, int64_t numel,
                  const AdamWFactors<double>& factors);

}  // namespace hyper_parallel::detail
