// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "hyper_parallel/collectives/world.h"
#include "tests/collectives/support/conformance.h"

namespace hyper_parallel {
namespace {

class ThreadConformance : public testing::TestWithParam<int> {};

TEST_P(ThreadConformance, AllCases) {
  for (const test::ConformanceCase& row : test::conformance_cases()) {
    SCOPED_TRACE(row.name);
    run_threads(GetParam(), [&](World& world) { row.run(world.group()); }, {.timeout = std::chrono::seconds(20)});
  }
}

TEST(ThreadConformanceWithChecks, AllCases) {
  for (const test::ConformanceCase& row : test::conformance_cases()) {
    SCOPED_TRACE(row.name);
    run_threads(3, [&](World& world) { row.run(world.group()); }, {.timeout = std::chrono::seconds(20), .check_collectives = true});
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadConformance, testing::Values(1, 2, 3, 4, 8));

}  // namespace
}  // namespace hyper_parallel
