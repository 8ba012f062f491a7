// SPDX-License-Identifier: Apache-2.0
// Optimizers work on 1-d pieces of parameters (the whole, flattened, on one rank), in place. What they compute for an element depends on
// that element's weight, gradient and state alone, so results don't depend on how parameters are cut.
//
//   std::vector<OptimizerParameter> parameters = ...;                    // from FullyShard::parameters(), trainable ones
//   auto optimizer = make_optimizer("adamw", std::move(parameters), {.betas = {0.9, 0.95}, .weight_decay = 0.1});
//   optimizer->step({.learning_rate = schedule(step), .gradient_scale = clip_coefficient(norm, max_norm)});
//   StateDict state = optimizer->state_dict();                           // aliases; loading into it restores the optimizer
//
// A new optimizer is one source with HYPER_PARALLEL_OPTIMIZER("name", function, "doc"); nothing else changes.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hyper_parallel/dtensor/state_dict.h"

namespace hyper_parallel {

struct OptimizerParameter {
  std::string name;            // full parameter name; unique
  at::Tensor data;             // [n] contiguous, elements [begin, begin + n) of the flattened part; n may be 0
  at::Tensor grad;             // [n] contiguous, of data's dtype; must have memory only during step()
  bool decays = true;          // false: no weight decay (norms, biases)
  std::vector<int64_t> sizes;  // of the whole parameter
  int64_t begin = 0;
  TensorPart part = {};  // of it, that is cut into pieces: all, or what a model-parallel rank holds
};

// Defaults are PyTorch's for AdamW.
struct OptimizerOptions {
  std::array<double, 2> betas{0.9, 0.999};  // in [0, 1)
  double epsilon = 1e-8;                    // >= 0
  double weight_decay = 0.01;               // >= 0, decoupled: weights shrink by learning_rate * weight_decay a step
};

struct StepOptions {
  double learning_rate = 1e-3;
  double gradient_scale = 1;  // gradients are multiplied by it as they are read
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual void step(const StepOptions& options) = 0;
  // "optimizer.<state>.<parameter name>" for every state, and "optimizer.step" (one int64: the number of steps taken).
  virtual StateDict state_dict() = 0;
  virtual int64_t num_steps() const = 0;
};

using OptimizerFactory = std::unique_ptr<Optimizer> (*)(std::vector<OptimizerParameter>, const OptimizerOptions&);

// ConfigError for an unknown name (lists the known ones) or options out of range; LayoutError for parameters it can't take.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name, std::vector<OptimizerParameter> parameters,
                                          const OptimizerOptions& options = {});

struct OptimizerInfo {
  std::string name, doc;
};
std::vector<OptimizerInfo> registered_optimizers();  // by name

// A name that is taken is an InternalError at start-up.
bool register_optimizer(const char* name, OptimizerFactory factory, const char* doc);
#define HYPER_PARALLEL_OPTIMIZER(name, factory, doc) \
  [[maybe_unused]] static const bool hyper_parallel_registered_##factory = ::hyper_parallel::register_optimizer(name, factory, doc)

}  // namespace hyper_parallel
