// SPDX-License-Identifier: Apache-2.0
// The one table of what every backend must do. A case is run by every rank of `group` and checks its own result with EXPECT_*.
//
//   for (const ConformanceCase& row : conformance_cases()) row.run(world.group());
//
// Expected values come from at:: ops on all ranks' inputs, which every rank can make by itself. Sums are compared bit for bit, in rank
// order.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/process_group.h"

namespace hyper_parallel::test {

struct ConformanceCase {
  std::string name;
  std::function<void(const ProcessGroup& group)> run;
};

const std::vector<ConformanceCase>& conformance_cases();

}  // namespace hyper_parallel::test
