// SPDX-License-Identifier: Apache-2.0
// Killed ranks, full disks, damaged checkpoints, numbers that blow up, signals: what the user reads, the exit code, and that the earlier
// checkpoint still resumes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>

#include "tests/cli/support/run.h"

namespace hyper_parallel {
namespace {

using namespace test;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::SizeIs;

Strings long_run(const Strings& more) {
  Strings options = {"--training.train_iters=100000"};
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

Program start(const TrainFolder& folder, const Strings& options) {
  Strings argv = {binary()};
  for (const std::string& argument : folder.arguments("out", options)) argv.push_back(argument);
  return Program(argv, environment());
}

TEST(KilledRank, EndsAllAndIsNamed) {
  const TrainFolder folder;
  Program program = start(folder, long_run({"--ranks=3", "--rank-mode=processes", "--checkpoint.save_steps=2"}));
  ASSERT_TRUE(program.await_output("step 4/", seconds(30)));
  const std::vector<pid_t> ranks = children_of(program.process());
  ASSERT_THAT(ranks, SizeIs(3));
  const auto killed = std::chrono::steady_clock::now();
  kill(ranks[1], SIGKILL);
  const Outcome outcome = program.finish(seconds(20));
  EXPECT_LT(std::chrono::steady_clock::now() - killed, seconds(5));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("error: rank 1 (process " + std::to_string(ranks[1]) + ") was killed by signal 9 (Killed)"));
  EXPECT_EQ(outcome.output.find("error: "), outcome.output.find("error: rank 1 (process ")) << outcome.output;
  for (const pid_t rank : ranks) EXPECT_NE(kill(rank, 0), 0) << "rank process " << rank << " still runs";

  const RunOutput run = folder.output("out");
  const int step = std::stoi(run.latest().substr(5));
  folder.run("out", long_run({"--ranks=3", "--checkpoint.restore_from=LATEST", "--training.stop_at_step=" + std::to_string(step + 1)}));
  EXPECT_THAT(run.metric("step"), SizeIs(step + 1));
}

TEST(KilledRank, OfAThreadedRunEndsTheProcess) {
  const TrainFolder folder;
  Program program = start(folder, long_run({}));
  ASSERT_TRUE(program.await_output("step 2/", seconds(30)));
  kill(program.process(), SIGKILL);
  EXPECT_EQ(program.finish(seconds(5)).exit_code, 128 + SIGKILL);
}

struct SaveFault {
  const char *name, *point, *mode;
  const char* latest;  // what LATEST says afterwards
};

void PrintTo(const SaveFault& fault, std::ostream* out) { *out << fault.name; }

class KilledSave : public testing::TestWithParam<SaveFault> {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TrainFolder;
    folder_->run_each({{"whole", {}}, {"start", {"--training.stop_at_step=2"}}});
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static TrainFolder* folder_;
};
TrainFolder* KilledSave::folder_ = nullptr;

TEST_P(KilledSave, LeavesACheckpointThatResumesExactly) {
  const SaveFault& fault = GetParam();
  const RunOutput whole = folder_->output("whole"), run = folder_->output(fault.name);
  fs::copy(folder_->output("start").folder, run.folder, fs::copy_options::recursive);
  Strings options = {"--rank-mode", fault.mode, "--checkpoint.restore_from=LATEST", "--training.stop_at_step=4"};
  const Outcome killed = folder_->train(fault.name, options, {std::string("HYPER_PARALLEL_FAULT=checkpoint.") + fault.point});
  if (fault.mode == std::string("threads")) {
    EXPECT_EQ(killed.exit_code, 128 + SIGKILL) << killed.output;
  } else {
    EXPECT_EQ(killed.exit_code, 1);
    EXPECT_THAT(killed.output, AllOf(HasSubstr(std::string("rank ") + fault.point[std::string(fault.point).size() - 1] + " (process "),
                                     HasSubstr(") was killed by signal 9 (Killed)")));
  }
  EXPECT_EQ(run.latest(), fault.latest);
  options.pop_back();
  folder_->run(fault.name, options);
  EXPECT_EQ(run.metric("loss"), whole.metric("loss"));
  EXPECT_EQ(run.tensor_bytes(6), whole.tensor_bytes(6));
  for (const auto& entry : fs::directory_iterator(run.folder / "checkpoints"))
    EXPECT_EQ(entry.path().filename().string().find(".tmp-"), std::string::npos) << entry.path();
}

INSTANTIATE_TEST_SUITE_P(Points, KilledSave,
                         testing::Values(SaveFault{"Created", "created@0", "processes", "step-000002"},
                                         SaveFault{"Data", "data@1", "processes", "step-000002"},
                                         SaveFault{"DataOfTheFirst", "data@0", "processes", "step-000002"},
                                         SaveFault{"Written", "written@0", "processes", "step-000002"},
                                         SaveFault{"Metadata", "metadata@0", "processes", "step-000002"},
                                         SaveFault{"Renamed", "renamed@0", "processes", "step-000002"},
                                         SaveFault{"Latest", "latest@0", "processes", "step-000004"},
                                         SaveFault{"Threads", "renamed@0", "threads", "step-000002"}),
                         [](const auto& info) { return std::string(info.param.name); });

// A file system of 900 KiB, in a mount name space that ends with the shell. A checkpoint takes some 360 KiB.
TEST(FullDisk, FailsTheSaveAndKeepsTheEarlierCheckpoint) {
  if (run_program({"unshare", "-m", "true"}, seconds(5)).exit_code != 0) GTEST_SKIP() << "this user may not mount";
  const TrainFolder folder;
  fs::create_directory(folder.path() / "disk");
  const std::string out = (folder.path() / "disk/out").string(), program = binary().string();
  std::string train = program;
  for (const std::string& argument : folder.arguments("disk/out", {"--rank-mode=processes", "--checkpoint.restore_from=LATEST"}))
    train += " '" + argument + "'";
  const std::string script = "mount -t tmpfs -o size=900k tmpfs '" + (folder.path() / "disk").string() + "' || exit 77\n" + train +
                             " --checkpoint.save_steps=2; echo \"first run: $?\"\n" + "echo \"latest: $(cat '" + out +
                             "/checkpoints/LATEST')\"\n" + "ls '" + out + "/checkpoints' | grep -c tmp\n" + program +
                             " checkpoint verify '" + out + "'\n" + "rm -r '" + out + "/checkpoints/step-000002'\n" + train +
                             "; echo \"second run: $?\"\n" + program + " checkpoint verify '" + out + "'\n";
  const Outcome outcome = run_program({"unshare", "-m", "sh", "-c", script}, seconds(60), environment());
  if (outcome.exit_code == 77) GTEST_SKIP() << "this user may not mount";
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("saving checkpoint " + out + "/checkpoints/step-000006 failed on rank "),
                                    HasSubstr(": No space left on device"), HasSubstr("first run: 1\nlatest: step-000004\n0\n"),
                                    HasSubstr("/step-000004: ok\n"), HasSubstr("after step 4"), HasSubstr("second run: 0\n"),
                                    HasSubstr("/step-000006: ok\n")));
}

class DamagedCheckpoint : public testing::Test {
 protected:
  void SetUp() override { run_ = folder_.run("out", {"--training.stop_at_step=2"}); }

  // Resuming must fail with exit code 2 and say all of `messages`.
  Strings resume(Strings options = {}) const {
    options.push_back("--checkpoint.restore_from=LATEST");
    return folder_.arguments("out", options);
  }
  static void expect_refusal(const Outcome& outcome, const Strings& messages) {
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    for (const std::string& message : messages) EXPECT_THAT(outcome.output, HasSubstr(message));
  }
  void expect_refused(const Strings& messages) const { expect_refusal(hyper_parallel(resume()), messages); }
  void expect_change_refused(const fs::path& file, const std::function<std::string(std::string)>& change, const std::string& message) {
    const std::string good = read_text(file);
    write_text(file, change(good));
    for (const Outcome& outcome : hyper_parallel_each({resume(), {"checkpoint", "verify", run_.folder}}))
      expect_refusal(outcome, {file.string(), message});
    write_text(file, good);
  }

  const TrainFolder folder_;
  RunOutput run_;
};

TEST_F(DamagedCheckpoint, IsRefusedWithTheFilesName) {
  const auto half = [](const std::string& text) { return text.substr(0, text.size() / 2); };
  const auto flip = [](std::string text) {
    text[text.size() - 100] ^= 1;
    return text;
  };
  expect_change_refused(run_.checkpoint(2) / "rank-00001.safetensors", half, " bytes, expected ");
  expect_change_refused(run_.checkpoint(2) / "rank-00000.safetensors", flip, "damaged: ");
  expect_change_refused(run_.checkpoint(2) / "metadata.json", half, "damaged or truncated");
  folder_.run("out", {"--checkpoint.restore_from=LATEST"});  // all is back in place
}

TEST_F(DamagedCheckpoint, MissingFiles) {
  const fs::path checkpoint = run_.checkpoint(2);
  fs::rename(checkpoint / "rank-00000.safetensors", folder_.path() / "away");
  expect_refused({(checkpoint / "rank-00000.safetensors").string() + ": No such file"});
  fs::rename(folder_.path() / "away", checkpoint / "rank-00000.safetensors");
  write_text(run_.folder / "checkpoints/LATEST", "step-000009\n");
  expect_refused({"checkpoints/LATEST: names step-000009, which is missing", "complete checkpoints: [step-000002]"});
  fs::remove(run_.folder / "checkpoints/LATEST");
  expect_refused({"checkpoints/LATEST: no such file; complete checkpoints: [step-000002]"});
  const Outcome outcome = folder_.train("other", {"--checkpoint.restore_from=" + (folder_.path() / "none").string()});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("none: no such folder"));
}

TEST_F(DamagedCheckpoint, OfAnotherModelOrOtherData) {
  const std::pair<Strings, Strings> cases[] = {
      {{"--model.config.vocab_size=270"},
       {"step-000002: does not fit the state to load", "model.embed_tokens.weight: saved with shape [260, 32], wanted [270, 32]"}},
      {{"--model.config.num_hidden_layers=1"},
       {"does not fit the state to load", "only in the checkpoint", "model.layers.1.mlp.up_proj.weight"}},
      {{"--model.dtype=float64"}, {"saved as F32, wanted F64"}},
      {{"--dataset.held_out_fraction=0.2"}, {"the data changed since the checkpoint"}}};
  std::vector<Strings> commands;
  for (const auto& [options, messages] : cases) commands.push_back(resume(options));
  const std::vector<Outcome> outcomes = hyper_parallel_each(commands);
  for (size_t i = 0; i < outcomes.size(); ++i) expect_refusal(outcomes[i], cases[i].second);
}

TEST(NotFinite, StopsAllRanksWithStepRankAndSamples) {
  const TrainFolder folder;
  const char* const modes[] = {"threads", "processes"};
  std::vector<Strings> commands;
  for (const char* mode : modes)
    commands.push_back(folder.arguments(mode, {"--rank-mode", mode, "--optimizer.lr=1e30", "--lr_scheduler.warmup_iters=0",
                                               "--training.max_grad_norm=0", "--checkpoint.save_steps=1"}));
  const std::vector<Outcome> outcomes = hyper_parallel_each(commands);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    SCOPED_TRACE(modes[i]);
    const Outcome& outcome = outcomes[i];
    EXPECT_EQ(outcome.exit_code, 1);
    const RunOutput run = folder.output(modes[i]);
    const size_t steps = run.metric("step").size();
    EXPECT_THAT(outcome.output, HasSubstr("step " + std::to_string(steps + 1) + ": loss "));
    EXPECT_THAT(outcome.output, HasSubstr("weights are as after step " + std::to_string(steps)));
    for (const char* rank : {"rank 0: loss ", "rank 1: loss "}) EXPECT_THAT(outcome.output, HasSubstr(rank));
    const size_t samples = outcome.output.find("finite, samples [");
    ASSERT_NE(samples, std::string::npos) << outcome.output;
    const std::string list = outcome.output.substr(samples + 17, outcome.output.find(']', samples) - samples - 17);
    EXPECT_EQ(std::count(list.begin(), list.end(), ','), 11) << list;  // 12 of the 24 on each rank
    EXPECT_EQ(std::stoi(run.latest().substr(5)), static_cast<int>(steps));
  }
}

struct Stop {
  int signal;
  const char* mode;
};

class Signal : public testing::TestWithParam<Stop> {};

TEST_P(Signal, EndsAfterTheStepSavedAndResumes) {
  const auto [signal, mode] = GetParam();
  const TrainFolder folder;
  Program program = start(folder, long_run({"--rank-mode", mode}));
  ASSERT_TRUE(program.await_output("step 3/", seconds(30)));
  kill(program.process(), signal);
  const Outcome outcome = program.finish(seconds(20));
  EXPECT_EQ(outcome.exit_code, 128 + signal) << outcome.output;
  EXPECT_LT(outcome.took, seconds(20));
  const RunOutput run = folder.output("out");
  const std::string steps = std::to_string(run.metric("step").size());
  EXPECT_THAT(outcome.output, HasSubstr("interrupted after step " + steps + "; resume with --checkpoint.restore_from=LATEST"));
  EXPECT_EQ(std::to_string(std::stoi(run.latest().substr(5))), steps);
  const std::string next = std::to_string(run.metric("step").size() + 2);
  folder.run("out", long_run({"--rank-mode", mode, "--checkpoint.restore_from=LATEST", "--training.stop_at_step=" + next}));
  EXPECT_EQ(std::to_string(run.metric("step").size()), next);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Signal,
                         testing::Values(Stop{SIGINT, "threads"}, Stop{SIGTERM, "threads"}, Stop{SIGINT, "processes"},
                                         Stop{SIGTERM, "processes"}),
                         [](const auto& info) {
                           return std::string(info.param.signal == SIGINT ? "Interrupt_" : "Terminate_") + info.param.mode;
                         });

}  // namespace
}  // namespace hyper_parallel
