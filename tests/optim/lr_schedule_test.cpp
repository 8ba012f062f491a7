// SPDX-License-Identifier: Apache-2.0
// Schedules against transformers' get_*_schedule_with_warmup, closed forms, and bad options.
#include "hyper_parallel/optim/lr_schedule.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/optim/clip.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

// LambdaLR's rates at steps 0 to 20 with learning rate 0.3, 4 warm-up and 20 training steps (transformers 5.24).
const std::vector<std::pair<const char*, std::vector<double>>> kTransformers{
    {"constant",
     {0.0, 0.075, 0.15, 0.22499999999999998, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3}},
    {"cosine",
     {0.0,
      0.075,
      0.15,
      0.22499999999999998,
      0.3,
      0.29711779206048455,
      0.288581929876693,
      0.2747204418453818,
      0.2560660171779821,
      0.23333553495294032,
      0.20740251485476346,
      0.17926354830241925,
      0.15,
      0.12073645169758077,
      0.09259748514523654,
      0.06666446504705971,
      0.04393398282201788,
      0.025279558154618197,
      0.011418070123306989,
      0.0028822079395154354,
      0.0}},
    {"linear",
     {0.0,
      0.075,
      0.15,
      0.22499999999999998,
      0.3,
      0.28125,
      0.2625,
      0.24375,
      0.22499999999999998,
      0.20625,
      0.1875,
      0.16875,
      0.15,
      0.13125,
      0.1125,
      0.09375,
      0.075,
      0.05625,
      0.0375,
      0.01875,
      0.0}},
};

TEST(LrSchedule, EqualsTransformers) {
  for (const auto& [name, want] : kTransformers) {
    const LrSchedule schedule({.name = name, .learning_rate = 0.3, .num_warmup_steps = 4, .num_steps = 20});
    for (int64_t step = 0; step <= 20; ++step) EXPECT_NEAR(schedule(step), want[step], 1e-15) << name << " at " << step;
  }
}

TEST(LrSchedule, ReachesTheFloorAndStaysThere) {
  for (const char* name : {"cosine", "linear", "wsd"}) {
    const LrSchedule schedule({.name = name,
                               .learning_rate = 1,
                               .min_learning_rate = 0.1,
                               .num_warmup_steps = 10,
                               .num_steps = 100,
                               .num_decay_steps = std::string(name) == "wsd" ? 20 : 0});
    EXPECT_DOUBLE_EQ(schedule(1), 0.1) << name;
    EXPECT_DOUBLE_EQ(schedule(10), 1) << name;
    EXPECT_DOUBLE_EQ(schedule(100), 0.1) << name;
    EXPECT_DOUBLE_EQ(schedule(1000), 0.1) << name;
  }
}

TEST(LrSchedule, HalfWay) {
  const LrScheduleOptions options{.learning_rate = 3, .min_learning_rate = 1, .num_steps = 8};
  EXPECT_DOUBLE_EQ(LrSchedule(options)(4), 2);
  LrScheduleOptions linear = options;
  linear.name = "linear";
  EXPECT_DOUBLE_EQ(LrSchedule(linear)(4), 2);
}

TEST(LrSchedule, WarmupStableDecay) {
  const LrSchedule schedule({.name = "wsd", .learning_rate = 8, .num_warmup_steps = 2, .num_steps = 10, .num_decay_steps = 4});
  const std::vector<double> want{0, 4, 8, 8, 8, 8, 8, 6, 4, 2, 0};
  for (int64_t step = 0; step <= 10; ++step) EXPECT_DOUBLE_EQ(schedule(step), want[step]) << step;
}

TEST(LrSchedule, ConstantIsConstant) {
  const LrSchedule schedule({.name = "constant", .learning_rate = 2, .num_steps = 3});
  for (int64_t step = 0; step < 5; ++step) EXPECT_EQ(schedule(step), 2);
}

TEST(LrSchedule, AllWarmup) {
  const LrSchedule schedule({.name = "cosine", .learning_rate = 2, .num_warmup_steps = 4, .num_steps = 4});
  EXPECT_DOUBLE_EQ(schedule(2), 1);
  EXPECT_DOUBLE_EQ(schedule(4), 2);
}

std::string message_of(const LrScheduleOptions& options) {
  return testing_support::message_of<ConfigError>([&] { LrSchedule schedule(options); });
}

TEST(LrSchedule, BadOptions) {
  using testing::HasSubstr;
  EXPECT_THAT(message_of({.name = "step"}), HasSubstr("unknown schedule 'step' (known: constant, cosine, linear, wsd)"));
  EXPECT_THAT(message_of({.num_steps = 0}), HasSubstr("num_steps must be > 0, not 0"));
  EXPECT_THAT(message_of({.learning_rate = -1}), HasSubstr("learning_rate must be >= 0"));
  EXPECT_THAT(message_of({.learning_rate = 1, .min_learning_rate = 2}), HasSubstr("min_learning_rate must be from 0 to learning_rate (1)"));
  EXPECT_THAT(message_of({.num_warmup_steps = 3, .num_steps = 2}), HasSubstr("num_warmup_steps must be from 0 to num_steps (2), not 3"));
  EXPECT_THAT(message_of({.name = "wsd", .num_steps = 9}), HasSubstr("num_decay_steps must be from 1 to"));
  EXPECT_THAT(message_of({.name = "linear", .num_steps = 9, .num_decay_steps = 1}), HasSubstr("num_decay_steps is for the schedule wsd"));
}

TEST(LrSchedule, RegisteredNames) {
  std::vector<std::string> names;
  for (const LrScheduleInfo& info : registered_lr_schedules()) names.push_back(info.name);
  EXPECT_THAT(names, testing::ElementsAre("constant", "cosine", "linear", "wsd"));
}

// torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), clamped to 1.
TEST(Clip, Coefficient) {
  EXPECT_EQ(clip_coefficient(0.5, 1), 1);
  EXPECT_EQ(clip_coefficient(0, 1), 1);
  EXPECT_DOUBLE_EQ(clip_coefficient(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(clip_coefficient(4, 0), 1);
  EXPECT_EQ(clip_coefficient(4, std::numeric_limits<double>::infinity()), 1);
  EXPECT_TRUE(std::isnan(clip_coefficient(NAN, 1)));
}

}  // namespace
}  // namespace hyper_parallel
