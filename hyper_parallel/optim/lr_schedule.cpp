// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/optim/lr_schedule.h"

#include <algorithm>
#include <map>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

struct Registration {
  LrScheduleShape shape;
  std::string doc;
};

std::map<std::string, Registration>& registry() {
  static std::map<std::string, Registration> map;
  return map;
}

LrScheduleShape find_shape(const std::string& name) {
  const auto found = registry().find(name);
  if (found != registry().end()) return found->second.shape;
  std::string known;
  for (const auto& [other, registration] : registry()) known += (known.empty() ? "" : ", ") + other;
  throw ConfigError("unknown schedule '" + name + "' (known: " + known + ")");
}

void check_options(const LrScheduleOptions& o) {
  if (o.num_steps < 1) throw ConfigError(str("schedule: num_steps must be > 0, not ", o.num_steps));
  if (!(o.learning_rate >= 0)) throw ConfigError(str("schedule: learning_rate must be >= 0, not ", o.learning_rate));
  if (!(o.min_learning_rate >= 0 && o.min_learning_rate <= o.learning_rate)) {
    throw ConfigError(
        str("schedule: min_learning_rate must be from 0 to learning_rate (", o.learning_rate, "), not ", o.min_learning_rate));
  }
  if (o.num_warmup_steps < 0 || o.num_warmup_steps > o.num_steps) {
    throw ConfigError(str("schedule: num_warmup_steps must be from 0 to num_steps (", o.num_steps, "), not ", o.num_warmup_steps));
  }
  const int64_t most = o.num_steps - o.num_warmup_steps;
  if (o.name == "wsd" && (o.num_decay_steps < 1 || o.num_decay_steps > most)) {
    throw ConfigError(
        str("schedule: num_decay_steps must be from 1 to num_steps - num_warmup_steps (", most, "), not ", o.num_decay_steps));
  }
  if (o.name != "wsd" && o.num_decay_steps != 0) {
    throw ConfigError(str("schedule: num_decay_steps is for the schedule wsd, not ", o.name));
  }
}

}  // namespace

bool register_lr_schedule(const char* name, LrScheduleShape shape, const char* doc) {
  const bool fresh = registry().emplace(name, Registration{shape, doc}).second;
  HYPER_PARALLEL_CHECK(fresh, "schedule '", name, "' is registered twice");
  return true;
}

std::vector<LrScheduleInfo> registered_lr_schedules() {
  std::vector<LrScheduleInfo> all;
  for (const auto& [name, registration] : registry()) all.push_back({name, registration.doc});
  return all;
}

LrSchedule::LrSchedule(LrScheduleOptions options) : options_(std::move(options)), shape_(find_shape(options_.name)) {
  check_options(options_);
}

double LrSchedule::operator()(int64_t step) const {
  const auto& [name, peak, low, num_warmup_steps, num_steps, num_decay_steps] = options_;
  if (step < num_warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(num_warmup_steps);
  const double left = shape_(options_, std::min(step, num_steps));
  return name == "constant" ? peak : low + (peak - low) * left;
}

}  // namespace hyper_parallel
