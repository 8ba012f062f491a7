// SPDX-License-Identifier: Apache-2.0
// What runs write and what reads it: metrics, versions, and models from folders that are not what they should be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"
#include "hyper_parallel/train/metrics.h"
#include "hyper_parallel/train/model_folder.h"
#include "hyper_parallel/train/version.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

StepMetrics metrics(int64_t step, double loss) {
  return {.step = step, .loss = loss, .grad_norm = 0.5, .lr = 1e-3, .tokens = 100, .step_seconds = 0.25};
}

std::vector<nlohmann::json> lines_of(const TemporaryFolder& folder) {
  std::ifstream file(folder / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(MetricsLog, WritesOneObjectAStep) {
  const TemporaryFolder folder;
  testing::internal::CaptureStderr();
  {
    MetricsLog log(folder.path(), {.num_steps = 4, .logging_steps = 3});
    for (int64_t step = 1; step <= 4; ++step) {
      StepMetrics entry = metrics(step, 0.1 + step);
      if (step == 2) entry.val_loss = 7.5;
      log.step(entry);
    }
  }
  const std::string shown = testing::internal::GetCapturedStderr();
  const auto lines = lines_of(folder);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2]["loss"].get<double>(), 3.1);
  EXPECT_EQ(lines[2]["tokens_per_second"].get<double>(), 400);
  EXPECT_EQ(lines[1]["val_loss"].get<double>(), 7.5);
  EXPECT_FALSE(lines[2].contains("val_loss"));
  EXPECT_GT(lines[0]["max_rss_bytes"].get<int64_t>(), int64_t{1} << 20);
  EXPECT_EQ(lines[0].size(), 8u);
  EXPECT_EQ(shown,
            "step 3/4  loss 3.1000  norm 0.500  lr 1.00e-03  400 tokens/s  left 0:00\n"
            "step 4/4  loss 4.1000  norm 0.500  lr 1.00e-03  400 tokens/s  left 0:00\n");
}

TEST(MetricsLog, ResumeDropsLaterAndTornLines) {
  const TemporaryFolder folder;
  testing::internal::CaptureStderr();
  {
    MetricsLog log(folder.path(), {.num_steps = 9});
    for (int64_t step = 1; step <= 5; ++step) log.step(metrics(step, step));
  }
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << "{\"step\":6,\"lo";  // a crash
  {
    MetricsLog log(folder.path(), {.num_steps = 9, .resume_step = 3});
    log.step(metrics(4, 40));
  }
  testing::internal::GetCapturedStderr();
  const auto lines = lines_of(folder);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2]["loss"].get<double>(), 3);
  EXPECT_EQ(lines[3]["loss"].get<double>(), 40);
}

TEST(MetricsLog, SaysWhatCannotBeWritten) {
  const TemporaryFolder folder;
  write_text(folder / "file", "x");
  EXPECT_THAT(message_of<RuntimeError>([&] { MetricsLog(folder / "file/out", {}); }),
              AllOf(HasSubstr("cannot write " + (folder / "file/out/metrics.jsonl").string()), HasSubstr("Not a directory")));
}

TEST(Version, BuiltAndLoadedAreTheSame) {
  EXPECT_EQ(loaded_torch_version(), built_torch_version());
  EXPECT_THAT(version_text(), MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+ \\(libtorch 2\\.13\\.[0-9]+\\)"));
  EXPECT_NO_THROW(check_torch_version());
}

TEST(FindCheckpoint, TakesACheckpointItsParentOrTheRun) {
  const TemporaryFolder folder;
  const auto step = folder / "checkpoints/step-000002";
  EXPECT_EQ(find_checkpoint(folder.path()), "");
  run_threads(1, [&](World& world) { save_checkpoint(world.group(), step, {{}, {{"step", 2}}}); });
  for (const auto& path : {step, folder / "checkpoints", folder.path()}) EXPECT_EQ(find_checkpoint(path), step);
  const auto aside = folder / "checkpoints/step-000002.replaced-1-0";  // as a crash while it was being replaced leaves it
  std::filesystem::rename(step, aside);
  for (const auto& path : {step, folder / "checkpoints", folder.path()}) EXPECT_EQ(find_checkpoint(path), aside);
  std::filesystem::remove_all(aside);
  EXPECT_THAT(message_of<CheckpointError>([&] { find_checkpoint(folder.path()); }),
              HasSubstr("LATEST: names step-000002, which is missing"));
}

TEST(LoadForInference, RefusesFoldersWithoutAModel) {
  const TemporaryFolder folder;
  const auto error = [&](const std::filesystem::path& path) {
    return message_of<CheckpointError>([&] { load_for_inference(path, at::kFloat); });
  };
  EXPECT_EQ(error(folder / "none"), (folder / "none").string() + ": no such file or folder");
  EXPECT_THAT(error(folder.path()),
              HasSubstr("is neither a checkpoint (metadata.json), a run's folder (checkpoints/LATEST) nor a model folder (config.json)"));
  run_threads(1, [&](World& world) { save_checkpoint(world.group(), folder / "step-000001", {{}, {{"step", 1}}}); });
  EXPECT_THAT(error(folder.path()), HasSubstr("step-000001 holds no model configuration: not saved by training"));
  EXPECT_THAT(message_of<CheckpointError>([&] { export_checkpoint(folder / "step-000001", folder / "out", at::kFloat); }),
              HasSubstr("holds no model configuration"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(LoadForInference, NamesTensorsThatTheCheckpointLacks) {
  const TemporaryFolder folder;
  const nlohmann::json model = {{"model_type", "qwen3"},    {"vocab_size", 260}, {"hidden_size", 8},      {"num_hidden_layers", 1},
                                {"num_attention_heads", 2}, {"head_dim", 4},     {"intermediate_size", 8}};
  run_threads(1, [&](World& world) { save_checkpoint(world.group(), folder / "step-000001", {{}, {{"step", 1}, {"model", model}}}); });
  EXPECT_THAT(message_of<CheckpointError>([&] { load_for_inference(folder / "step-000001", at::kFloat); }),
              HasSubstr("step-000001: no tensor \"model."));
}

}  // namespace
}  // namespace hyper_parallel
