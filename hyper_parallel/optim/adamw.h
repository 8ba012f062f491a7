// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019), equal to torch.optim.AdamW up to rounding.
//
//   AdamW adamw(std::move(parameters), {.weight_decay = 0.1});
//   adamw.step({.learning_rate = 3e-4, .gradient_scale = clip_coefficient(norm, 1.0)});
//
// One pass over memory a step, on at::get_num_threads() threads. Every operation is rounded on its own (no fused multiply-add), so an
// element's result is bit-identical whatever its position in a piece, the number of threads, and the instructions that the CPU has.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "hyper_parallel/optim/optimizer.h"

namespace hyper_parallel {

class AdamW final : public Optimizer {
 public:
  // f32 and f64 parameters; states have the parameter's dtype. ConfigError: options out of range. LayoutError: another dtype, a piece that
  // is not 1-d and contiguous, a gradient of another size.
  AdamW(std::vector<OptimizerParameter> parameters, const OptimizerOptions& options);

  void step(const StepOptions& options) override;
  StateDict state_dict() override;  // exp_avg, exp_avg_sq, step
  int64_t num_steps() const override;

 private:
  struct Entry {
    OptimizerParameter parameter;
    at::Tensor exp_avg, exp_avg_sq;
  };
  struct Factors;
  void update(const Entry& entry, int64_t begin, int64_t numel, const Factors& factors);

  std::vector<Entry> entries_;
  std::vector<int64_t> ends_;  // of the entries, laid end to end
  OptimizerOptions options_;
  at::Tensor step_;  // int64 [1]
};

}  // namespace hyper_parallel
