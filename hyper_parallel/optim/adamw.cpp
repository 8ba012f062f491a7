// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/optim/adamw.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/parallel_for.h"
#include "hyper_parallel/optim/detail/adamw_kernel.h"

namespace hyper_parallel {
namespace {

void check_options(const OptimizerOptions& options) {
  for (const double beta : options.betas) {
    if (!(beta >= 0 && beta < 1)) throw ConfigError(str("adamw: betas must be in [0, 1), not ", beta));
  }
  if (!(options.epsilon >= 0)) throw ConfigError(str("adamw: epsilon must be >= 0, not ", options.epsilon));
  if (!(options.weight_decay >= 0)) throw ConfigError(str("adamw: weight_decay must be >= 0, not ", options.weight_decay));
}

void check_parameter(const OptimizerParameter& parameter) {
  const auto& [name, data, grad, decays, sizes, begin, part] = parameter;
  if (data.scalar_type() != at::kFloat && data.scalar_type() != at::kDouble) {
    throw LayoutError(str("adamw: parameter ", name, " is of type ", c10::toString(data.scalar_type()), " (allowed: f32, f64)"));
  }
  const bool fits = grad.defined() && grad.scalar_type() == data.scalar_type() && grad.sizes() == data.sizes();
  if (!fits) throw LayoutError(str("adamw: the gradient of ", name, " must have the size and type of its data"));
  if (data.dim() != 1 || !data.is_contiguous() || !grad.is_contiguous()) {
    throw LayoutError(str("adamw: the pieces of ", name, " must be 1-d and contiguous"));
  }
}

constexpr int64_t kElementsPerThread = 32'768;  // at least: less is not worth waking a thread

template <class T>
detail::AdamWFactors<T> factors_of(const OptimizerOptions& options, const StepOptions& step, bool decays, int64_t num_steps) {
  const double steps = static_cast<double>(num_steps);
  const auto [beta1, beta2] = options.betas;
  return {.gradient_scale = static_cast<T>(step.gradient_scale),
          .keep = static_cast<T>(decays ? 1 - step.learning_rate * options.weight_decay : 1),
          .beta1 = static_cast<T>(beta1),
          .one_minus_beta1 = static_cast<T>(1 - beta1),
          .beta2 = static_cast<T>(beta2),
          .one_minus_beta2 = static_cast<T>(1 - beta2),
          .root_correction2 = static_cast<T>(std::sqrt(1 - std::pow(beta2, steps))),
          .epsilon = static_cast<T>(options.epsilon),
          .step_size = static_cast<T>(step.learning_rate / (1 - std::pow(beta1, steps)))};
}

std::unique_ptr<Optimizer> make_adamw(std::vector<OptimizerParameter> parameters, const OptimizerOptions& options) {
  return std::make_unique<AdamW>(std::move(parameters), options);
}

}  // namespace

HYPER_PARALLEL_OPTIMIZER("adamw", make_adamw, "Adam with decoupled weight decay; norms and biases don't decay");

AdamW::AdamW(std::vector<OptimizerParameter> parameters, const OptimizerOptions& options)
    : options_(options), step_(at::zeros({1}, at::kLong)) {
  check_options(options);
  entries_.reserve(parameters.size());
  for (OptimizerParameter& parameter : parameters) {
    check_parameter(parameter);
    const at::Tensor& data = parameter.data;
    at::Tensor exp_avg = at::zeros(data.sizes(), data.options()), exp_avg_sq = at::zeros(data.sizes(), data.options());
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + data.numel());
    entries_.push_back({std::move(parameter), std::move(exp_avg), std::move(exp_avg_sq)});
  }
}

int64_t AdamW::num_steps() const { return step_.const_data_ptr<int64_t>()[0]; }

// [0] without decay, [1] with it.
struct AdamW::Factors {
  std::array<detail::AdamWFactors<float>, 2> f32;
  std::array<detail::AdamWFactors<double>, 2> f64;
};

void AdamW::update(const Entry& entry, int64_t begin, int64_t numel, const Factors& factors) {
  const OptimizerParameter& parameter = entry.parameter;
  const auto run = [&]<class T>(const detail::AdamWFactors<T>& chosen) {
    detail::adamw_update(parameter.data.mutable_data_ptr<T>() + begin, parameter.grad.const_data_ptr<T>() + begin,
                         entry.exp_avg.mutable_data_ptr<T>() + begin, entry.exp_avg_sq.mutable_data_ptr<T>() + begin, numel, chosen);
  };
  if (parameter.data.scalar_type() == at::kFloat) {
    run(factors.f32[parameter.decays]);
  } else {
    run(factors.f64[parameter.decays]);
  }
}

void AdamW::step(const StepOptions& options) {
  const int64_t num_steps = ++step_.mutable_data_ptr<int64_t>()[0];
  for (const auto& [parameter, exp_avg, exp_avg_sq] : entries_) {
    HYPER_PARALLEL_CHECK(parameter.grad.numel() == 0 || parameter.grad.const_data_ptr() != nullptr, parameter.name, " has no gradient");
  }
  const Factors factors{
      .f32 = {factors_of<float>(options_, options, false, num_steps), factors_of<float>(options_, options, true, num_steps)},
      .f64 = {factors_of<double>(options_, options, false, num_steps), factors_of<double>(options_, options, true, num_steps)}};
  parallel_for(at::get_num_threads(), 0, ends_.empty() ? 0 : ends_.back(), kElementsPerThread, [&](int64_t begin, int64_t end) {
    size_t index = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    for (; begin < end; ++index) {
      const int64_t stop = std::min(end, ends_[index]), first = ends_[index] - entries_[index].parameter.data.numel();
      if (stop > begin) update(entries_[index], begin - first, stop - begin, factors);
      begin = stop;
    }
  });
}

StateDict AdamW::state_dict() {
  StateDict state{whole_entry("optimizer.step", step_)};
  for (const Entry& entry : entries_) {
    const auto& [name, data, grad, decays, sizes, begin, part] = entry.parameter;
    state.push_back(range_entry("optimizer.exp_avg." + name, sizes, entry.exp_avg, begin, part));
    state.push_back(range_entry("optimizer.exp_avg_sq." + name, sizes, entry.exp_avg_sq, begin, part));
  }
  return state;
}

}  // namespace hyper_parallel
