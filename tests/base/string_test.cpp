// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/string.h"

#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

TEST(String, StrPrintsRangesBracketed) { EXPECT_EQ(str("shape ", std::vector<int>{2, 3}, ' ', true), "shape [2, 3] true"); }

TEST(String, GlobStopsAtDots) {
  EXPECT_TRUE(glob_match("layers.*.mlp", "layers.3.mlp"));
  EXPECT_FALSE(glob_match("layers.*", "layers.3.mlp"));
  EXPECT_TRUE(glob_match("layers.**", "layers.3.mlp"));
  EXPECT_TRUE(glob_match("*norm", "norm"));
  EXPECT_FALSE(glob_match("norm*", "a.norm"));
}

TEST(String, NearestNameOnlyForTypingMistakes) {
  const std::vector<std::string> known = {"learning_rate", "betas", "weight_decay"};
  EXPECT_EQ(nearest_name("weigth_decay", known), "weight_decay");
  EXPECT_EQ(nearest_name("momentum", known), "");
}

TEST(Error, KindsDecideExitCodes) {
  EXPECT_EQ(ConfigError("x").exit_code(), 2);
  EXPECT_EQ(CollectiveError("x").exit_code(), 1);
  try {
    HYPER_PARALLEL_CHECK(1 + 1 == 3, "values ", 1, " and ", 1);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("1 + 1 == 3: values 1 and 1"), std::string::npos);
  }
}

}  // namespace
}  // namespace hyper_parallel
