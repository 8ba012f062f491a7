// SPDX-License-Identifier: Apache-2.0
// Whole training runs: what they leave in output_dir, and that stopped and resumed runs equal the uninterrupted one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/cli/support/run.h"

namespace hyper_parallel {
namespace {

using namespace test;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

void expect_same_steps(const RunOutput& run, const RunOutput& expected) {
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "val_loss"}) EXPECT_EQ(run.metric(key), expected.metric(key)) << key;
}

void expect_close_losses(const RunOutput& run, const RunOutput& expected, double tolerance = 1e-5) {
  const std::vector<double> losses = run.numbers("loss"), others = expected.numbers("loss");
  ASSERT_EQ(losses.size(), others.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], others[i], tolerance * others[i]) << "line " << i + 1;
}

Strings join(Strings first, const Strings& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST(TrainRun, LeavesEverythingInItsFolder) {
  const TrainFolder folder;
  const Strings options = {"--training.eval_steps=3", "--checkpoint.save_steps=2", "--checkpoint.keep_last=2", "--sample.prompt='the '",
                           "--sample.max_new_tokens=20"};
  const Outcome outcome = folder.train("out", options);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const RunOutput run = folder.output("out");

  std::set<std::string> names = names_in(run.folder);
  EXPECT_EQ(std::erase_if(names, [](const std::string& name) { return name.starts_with("events.out.tfevents."); }), 1u);
  EXPECT_THAT(names, ElementsAre("checkpoints", "config.yaml", "metrics.jsonl"));
  EXPECT_THAT(names_in(run.folder / "checkpoints"), ElementsAre("LATEST", "step-000004", "step-000006"));
  EXPECT_THAT(names_in(run.checkpoint(6)), ElementsAre("metadata.json", "rank-00000.safetensors", "rank-00001.safetensors"));
  EXPECT_EQ(run.latest(), "step-000006");

  EXPECT_THAT(run.metric("step"), ElementsAre("1", "2", "3", "4", "5", "6"));
  EXPECT_THAT(run.metric("tokens"), Each("768"));
  EXPECT_THAT(run.metric("val_loss"), ElementsAre("", "", Not(""), "", "", Not("")));
  for (const char* key : {"loss", "grad_norm", "lr", "tokens_per_second", "step_seconds", "max_rss_bytes"})
    EXPECT_THAT(run.numbers(key), AllOf(SizeIs(6), Each(testing::Gt(0)))) << key;
  const std::vector<double> losses = run.numbers("loss");
  EXPECT_NEAR(losses[0], std::log(260), 0.1);  // a fresh model guesses evenly
  EXPECT_LT(losses[5], losses[0] - 0.5);
  EXPECT_NEAR(run.numbers("lr")[0], 2.5e-3, 1e-9);
  EXPECT_NEAR(run.numbers("lr")[1], 5e-3, 1e-9);

  const Outcome shown = hyper_parallel({"config", "show", run.folder / "config.yaml"});
  EXPECT_EQ(shown.output, read_text(run.folder / "config.yaml"));
  EXPECT_THAT(shown.output, HasSubstr("eval_steps: 3"));

  // Each rank could print these; one does.
  for (const char* once : {" parameters on 2 ranks", "step 3/6  loss ", "\nthe "}) {
    const size_t at = outcome.output.find(once);
    EXPECT_NE(at, std::string::npos) << once << " in " << outcome.output;
    EXPECT_EQ(outcome.output.find(once, at + 1), std::string::npos) << once << " in " << outcome.output;
  }
}

TEST(TrainRun, ConfigOfARunRepeatsIt) {
  const TrainFolder folder;
  const RunOutput first = folder.run("first", {"--training.stop_at_step=2"});
  const std::string bytes = first.tensor_bytes(2);
  const Strings losses = first.metric("loss");
  fs::rename(first.folder / "config.yaml", folder.path() / "again.yaml");
  EXPECT_EQ(hyper_parallel({"train", folder.path() / "again.yaml"}).exit_code, 0);
  EXPECT_EQ(first.metric("loss"), losses);
  EXPECT_EQ(first.tensor_bytes(2), bytes);
}

TEST(TrainRun, ThreadsAndProcessesGiveTheSame) {
  const TrainFolder folder;
  const std::vector<RunOutput> runs = folder.run_each({{"threads", {}}, {"processes", {"--rank-mode", "processes"}}});
  expect_same_steps(runs[1], runs[0]);
  EXPECT_EQ(runs[1].tensor_bytes(6), runs[0].tensor_bytes(6));
}

TEST(TrainRun, AnyLayoutGivesTheSameLosses) {
  const TrainFolder folder;
  const Strings layouts[] = {{"--ranks=1"},
                             {"--ranks=2"},
                             {"--ranks=3"},
                             {"--ranks=4", "--fsdp_config.dp_replicate_size=2"},
                             {"--ranks=2", "--fsdp_config.dp_shard_size=1", "--rank-mode=processes"},
                             {"--ranks=2", "--training.micro_batch_size=12"},
                             {"--ranks=2", "--fsdp_config.reshard_after_forward=false"}};
  std::vector<std::pair<std::string, Strings>> runs;
  for (const Strings& layout : layouts) runs.emplace_back(std::to_string(runs.size()), layout);
  const std::vector<RunOutput> outputs = folder.run_each(runs);
  for (size_t i = 1; i < outputs.size(); ++i) {
    SCOPED_TRACE(testing::PrintToString(layouts[i]));
    expect_close_losses(outputs[i], outputs[0]);
  }
}

TEST(TrainRun, LlamaInDoublePrecisionWithoutClipping) {
  const TrainFolder folder;
  const Strings options = {"--model.type=llama", "--model.dtype=float64", "--training.max_grad_norm=0", "--lr_scheduler.type=wsd"};
  const std::vector<RunOutput> runs = folder.run_each({{"one", join(options, {"--ranks=1"})}, {"two", options}});
  expect_close_losses(runs[1], runs[0], 1e-9);
  EXPECT_LT(runs[1].numbers("loss").back(), runs[1].numbers("loss").front());
}

TEST(TrainRun, StartsFromAModelFolder) {
  const TrainFolder folder;
  const RunOutput first = folder.run("first", {"--training.eval_steps=6"});
  const fs::path model = folder.path() / "model";
  ASSERT_EQ(hyper_parallel({"checkpoint", "export", first.folder, "--output", model}).exit_code, 0);
  const RunOutput second = folder.run(
      "second", {"--model.config=null", "--model.pretrained_path=" + model.string(), "--optimizer.lr=0", "--training.eval_steps=6"});
  EXPECT_NEAR(second.numbers("val_loss").back(), first.numbers("val_loss").back(), 1e-6);
}

struct Layout {
  const char* name;
  Strings options;
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

std::string layout_name(const testing::TestParamInfo<Layout>& info) { return info.param.name; }

class ExactResume : public testing::TestWithParam<Layout> {};

TEST_P(ExactResume, EqualsTheUninterruptedRunBitForBit) {
  const TrainFolder folder;
  const Strings options = join(GetParam().options, {"--training.eval_steps=2", "--checkpoint.restore_from=LATEST"});
  const std::vector<RunOutput> runs = folder.run_each({{"whole", options}, {"parts", join(options, {"--training.stop_at_step=3"})}});
  const RunOutput &whole = runs[0], &parts = runs[1];
  EXPECT_THAT(parts.metric("step"), SizeIs(3));
  EXPECT_EQ(parts.latest(), "step-000003");
  folder.run("parts", options);
  EXPECT_EQ(parts.latest(), "step-000006");
  expect_same_steps(parts, whole);
  EXPECT_EQ(parts.tensor_bytes(6), whole.tensor_bytes(6));
  EXPECT_EQ(read_text(parts.checkpoint(6) / "metadata.json"), read_text(whole.checkpoint(6) / "metadata.json"));
}

INSTANTIATE_TEST_SUITE_P(Layouts, ExactResume,
                         testing::Values(Layout{"One", {"--ranks=1"}}, Layout{"Threads", {"--ranks=2"}},
                                         Layout{"ThreeThreads", {"--ranks=3"}},
                                         Layout{"Replicated", {"--ranks=4", "--fsdp_config.dp_replicate_size=2"}},
                                         Layout{"Processes", {"--ranks=2", "--rank-mode=processes"}},
                                         Layout{"OneMicrobatch", {"--ranks=2", "--training.micro_batch_size=12"}}),
                         layout_name);

// One run saved on two ranks, and the uninterrupted one, for all layouts to resume from and compare with.
class ResumeElsewhere : public testing::TestWithParam<Layout> {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TrainFolder;
    folder_->run_each({{"whole", {"--rank-mode=processes"}}, {"saved", {"--rank-mode=processes", "--training.stop_at_step=3"}}});
    saved_weights_ = exported(folder_->output("saved").checkpoint(3), "SavedWeights");
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  // Its metrics up to step 3, but no checkpoints.
  static RunOutput start(const std::string& name) {
    const RunOutput run = folder_->output(name);
    fs::create_directories(run.folder);
    fs::copy_file(folder_->output("saved").folder / "metrics.jsonl", run.folder / "metrics.jsonl", fs::copy_options::overwrite_existing);
    return run;
  }
  static std::string restore() { return "--checkpoint.restore_from=" + folder_->output("saved").checkpoint(3).string(); }
  // The bytes of the exported model.
  static std::string exported(const fs::path& checkpoint, const std::string& name) {
    const Outcome outcome = hyper_parallel({"checkpoint", "export", checkpoint, "--output", folder_->path() / name});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_text(folder_->path() / name / "model.safetensors");
  }
  static TrainFolder* folder_;
  static std::string saved_weights_;
};
TrainFolder* ResumeElsewhere::folder_ = nullptr;
std::string ResumeElsewhere::saved_weights_;

TEST_P(ResumeElsewhere, NextLossesAgree) {
  const RunOutput run = start(GetParam().name);
  folder_->run(GetParam().name, join(GetParam().options, {restore()}));
  EXPECT_THAT(run.metric("step"), SizeIs(6));
  expect_close_losses(run, folder_->output("whole"));
}

// A step with learning rate 0 changes no weight: what is saved after it is what was loaded.
TEST_P(ResumeElsewhere, LoadedWeightsAreBitEqual) {
  const std::string name = std::string(GetParam().name) + "Still";
  const RunOutput run = start(name);
  folder_->run(name, join(GetParam().options, {restore(), "--optimizer.lr=0", "--training.stop_at_step=4"}));
  const std::string loaded = exported(run.checkpoint(4), name + "Weights");
  EXPECT_THAT(loaded, Not(IsEmpty()));
  EXPECT_TRUE(loaded == saved_weights_);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ResumeElsewhere,
                         testing::Values(Layout{"OneRank", {"--ranks=1"}}, Layout{"ThreeRanks", {"--ranks=3"}},
                                         Layout{"FourRanks", {"--ranks=4", "--rank-mode=processes"}},
                                         Layout{"FourRanksHybrid", {"--ranks=4", "--fsdp_config.dp_shard_size=2"}},
                                         Layout{"TwoCopies", {"--ranks=2", "--fsdp_config.dp_shard_size=1"}}),
                         layout_name);

}  // namespace
}  // namespace hyper_parallel
