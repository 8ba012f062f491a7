// SPDX-License-Identifier: Apache-2.0
// Learning rates as pure functions of the step: nothing to save, nothing to restore.
//
//   LrSchedule schedule({.name = "cosine", .learning_rate = 3e-4, .min_learning_rate = 3e-5, .num_warmup_steps = 100, .num_steps = 1000});
//   double rate = schedule(step);      // step: 1 for the first update, num_steps for the last
//
// Warm-up is linear: step s of w has learning_rate * s / w, so the first update is not lost on a rate of 0. At step w the rate is
// learning_rate, and from there the named shape runs down to min_learning_rate, which step num_steps reaches exactly (unless warm-up
// takes all steps):
//   constant   learning_rate
//   linear     a straight line
//   cosine     half a cosine
//   wsd        constant, then a straight line over the last num_decay_steps
// A new shape is one source with HYPER_PARALLEL_LR_SCHEDULE("name", function, "doc").
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace hyper_parallel {

struct LrScheduleOptions {
  std::string name = "cosine";
  double learning_rate = 1e-3;   // >= 0
  double min_learning_rate = 0;  // in [0, learning_rate]; not used by "constant"
  int64_t num_warmup_steps = 0;  // in [0, num_steps]
  int64_t num_steps = 1;         // > 0; the whole run, also if it is stopped early
  int64_t num_decay_steps = 0;   // wsd only, where it must be in [1, num_steps - num_warmup_steps]
};

// The part of the way from learning_rate (1) to min_learning_rate (0) that is left after warm-up, at `step` in [warm-up, num_steps].
using LrScheduleShape = double (*)(const LrScheduleOptions& options, int64_t step);

class LrSchedule {
 public:
  // ConfigError: an unknown name (lists the known ones) or a value out of range.
  explicit LrSchedule(LrScheduleOptions options);
  // Steps beyond num_steps have the last one's rate.
  double operator()(int64_t step) const;
  const LrScheduleOptions& options() const { return options_; }

 private:
  LrScheduleOptions options_;
  LrScheduleShape shape_;
};

struct LrScheduleInfo {
  std::string name, doc;
};
std::vector<LrScheduleInfo> registered_lr_schedules();  // by name

bool register_lr_schedule(const char* name, LrScheduleShape shape, const char* doc);
#define HYPER_PARALLEL_LR_SCHEDULE(name, shape, doc) \
  [[maybe_unused]] static const bool hyper_parallel_registered_##shape = ::hyper_parallel::register_lr_schedule(name, shape, doc)

}  // namespace hyper_parallel
