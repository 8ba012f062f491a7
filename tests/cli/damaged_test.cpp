// SPDX-License-Identifier: Apache-2.0
// The newest of two checkpoints is damaged: resuming says so, touches nothing, and the earlier one goes on as if nothing had been.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/cli/support/run.h"

namespace hyper_parallel {
namespace {

using namespace test;
using testing::HasSubstr;

// Bytes and time of every file.
std::map<std::string, std::pair<std::string, fs::file_time_type>> snapshot(const fs::path& folder) {
  std::map<std::string, std::pair<std::string, fs::file_time_type>> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) all[entry.path().string()] = {read_text(entry.path()), entry.last_write_time()};
  return all;
}

// Six steps with checkpoints after the third and the last.
class DamagedNewest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TrainFolder;
    folder_->run("whole", {"--checkpoint.save_steps=3"});
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  void expect_refused(const RunOutput& run, const fs::path& file, const std::string& message, const std::string& mode = "threads") {
    const auto before = snapshot(run.folder);
    const Outcome outcome = folder_->train(run.folder.filename(), {"--checkpoint.restore_from=LATEST", "--rank-mode", mode});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    if (mode == "threads") EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("loading checkpoint " + run.checkpoint(6).string() + " failed on rank "));
    EXPECT_THAT(outcome.output, HasSubstr(file.string() + ": "));
    EXPECT_THAT(outcome.output, HasSubstr(message));
    EXPECT_THAT(outcome.output, HasSubstr("; other complete checkpoints: [step-000003]\n"));
    EXPECT_TRUE(snapshot(run.folder) == before) << "refusing changed a file";
  }

  void expect_resumes_from_the_earlier(const RunOutput& run) {
    const RunOutput whole = folder_->output("whole");
    folder_->run(run.folder.filename(), {"--checkpoint.save_steps=3", "--checkpoint.restore_from=" + run.checkpoint(3).string()});
    EXPECT_EQ(run.metric("loss"), whole.metric("loss"));
    EXPECT_EQ(run.tensor_bytes(6), whole.tensor_bytes(6));
    EXPECT_EQ(read_text(run.checkpoint(6) / "metadata.json"), read_text(whole.checkpoint(6) / "metadata.json"));
    EXPECT_EQ(run.latest(), "step-000006");
  }

  RunOutput copy_of_the_run(const std::string& name) const {
    const RunOutput run = folder_->output(name);
    fs::copy(folder_->output("whole").folder, run.folder, fs::copy_options::recursive);
    return run;
  }

  static TrainFolder* folder_;
};
TrainFolder* DamagedNewest::folder_ = nullptr;

TEST_F(DamagedNewest, DataCutShort) {
  const RunOutput run = copy_of_the_run("cut");
  const fs::path file = run.checkpoint(6) / "rank-00001.safetensors";
  const std::string size = std::to_string(fs::file_size(file));
  fs::resize_file(file, 1000);
  expect_refused(run, file, "1000 bytes, expected " + size);
  expect_refused(run, file, "1000 bytes, expected " + size, "processes");
  expect_resumes_from_the_earlier(run);
}

TEST_F(DamagedNewest, ByteOfTheMetadata) {
  const RunOutput run = copy_of_the_run("flipped");
  const fs::path file = run.checkpoint(6) / "metadata.json";
  const std::string good = read_text(file);
  for (const size_t at : {size_t(0), good.find(": \"") + 5, good.size() / 2, good.size() - 2}) {
    SCOPED_TRACE(at);
    std::string bad = good;
    bad[at] ^= 4;
    write_text(file, bad);
    expect_refused(run, file, "damaged");
  }
  expect_resumes_from_the_earlier(run);
}

}  // namespace
}  // namespace hyper_parallel
