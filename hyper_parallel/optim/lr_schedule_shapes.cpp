// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>

#include "hyper_parallel/optim/lr_schedule.h"

namespace hyper_parallel {
namespace {

double after_warmup(const LrScheduleOptions& options, int64_t step) {
  const int64_t length = std::max<int64_t>(1, options.num_steps - options.num_warmup_steps);
  return static_cast<double>(step - options.num_warmup_steps) / static_cast<double>(length);
}

double constant(const LrScheduleOptions&, int64_t) { return 1; }
double linear(const LrScheduleOptions& options, int64_t step) { return 1 - after_warmup(options, step); }
double cosine(const LrScheduleOptions& options, int64_t step) {
  return 0.5 * (1 + std::cos(std::numbers::pi * after_warmup(options, step)));
}
double wsd(const LrScheduleOptions& options, int64_t step) {
  const int64_t left = options.num_steps - step;
  return std::min(1.0, static_cast<double>(left) / static_cast<double>(options.num_decay_steps));
}

}  // namespace

HYPER_PARALLEL_LR_SCHEDULE("constant", constant, "warm-up, then learning_rate");
HYPER_PARALLEL_LR_SCHEDULE("cosine", cosine, "warm-up, then half a cosine down to min_learning_rate");
HYPER_PARALLEL_LR_SCHEDULE("linear", linear, "warm-up, then a straight line down to min_learning_rate");
HYPER_PARALLEL_LR_SCHEDULE("wsd", wsd, "warm-up, constant, then a straight line over the last num_decay_steps");

}  // namespace hyper_parallel
