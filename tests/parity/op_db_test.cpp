// SPDX-License-Identifier: Apache-2.0
// PyTorch's own operator database on sharded tensors: every aten op that its samples reach, the first recorded call of each, on two ranks.
// tools/generate_ops_parity.py runs all recorded calls, on more meshes, and PyTorch's DTensor beside ours (docs/ops_parity.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "hyper_parallel/base/string.h"
#include "tests/parity/support/command.h"

namespace hyper_parallel {
namespace {

namespace fs = std::filesystem;

using test::Outcome;

struct Summary {
  std::map<std::string, int> verdicts;
  std::set<std::string> passed_ops;
  std::vector<std::string> wrong;
};

Summary summary_of(const fs::path& results) {
  Summary summary;
  std::ifstream file(results);
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text);
    const std::string verdict = line["verdict"];
    ++summary.verdicts[verdict];
    if (verdict == "passed") summary.passed_ops.insert(line["op"]);
    if (verdict == "wrong") summary.wrong.push_back(text);
  }
  return summary;
}

TEST(OpDbTest, EveryOpOnceOnTwoRanks) {
  const fs::path root = fs::temp_directory_path() / str("op_db_test_", getpid());
  fs::create_directories(root);
  const Outcome recorded = test::run_python("op_db/record.py", {root.string(), "--samples", "1"});
  ASSERT_EQ(recorded.exit_code, 0) << recorded.output;
  const Outcome replayed = test::run_program(
      {HYPER_PARALLEL_OP_DB_REPLAY, root.string(), (root / "results").string(), "--once", "--limit", "6"}, test::kCommandLimit);
  ASSERT_EQ(replayed.exit_code, 0) << replayed.output;
  const Summary summary = summary_of(root / "results");
  EXPECT_THAT(summary.wrong, testing::IsEmpty());
  EXPECT_GT(summary.passed_ops.size(), 150u) << "of about 900; the rest raise";
  EXPECT_GT(summary.verdicts.at("passed"), 900);
  fs::remove_all(root);
}

}  // namespace
}  // namespace hyper_parallel
