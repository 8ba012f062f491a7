// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "tests/support/program.h"

namespace hyper_parallel {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Outcome;
using test::Program;
using testing::HasSubstr;

const std::vector<std::string> kNoLauncher{"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"};

Outcome launch(int num_ranks, const std::string& scenario, bool forked = false) {
  std::vector<std::string> argv{HYPER_PARALLEL_DIST_WORKER, "--launch", std::to_string(num_ranks)};
  if (forked) argv.push_back("--fork");
  argv.push_back(scenario);
  return test::run_program(argv, seconds(100), kNoLauncher);
}

class GlooConformance : public testing::TestWithParam<int> {};

TEST_P(GlooConformance, AllCases) {
  const Outcome outcome = launch(GetParam(), "conformance");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

INSTANTIATE_TEST_SUITE_P(Ranks, GlooConformance, testing::Values(1, 2, 3, 4));

TEST(Processes, ConformanceWithChecks) {
  const Outcome outcome = launch(3, "conformance_checked");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(Processes, LaunchedByForkAndByExec) {
  for (const bool forked : {false, true}) {
    const Outcome outcome = launch(2, "greet", forked);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("rank 0 of 2, local 0 of 2"));
    EXPECT_THAT(outcome.output, HasSubstr("rank 1 of 2, local 1 of 2"));
  }
}

TEST(Processes, KilledRankEndsAllAndIsNamed) {
  for (const bool forked : {false, true}) {
    const Outcome outcome = launch(3, "killed", forked);
    EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("rank 1 (process "));
    EXPECT_THAT(outcome.output, HasSubstr(") was killed by signal 9 (Killed)"));
    EXPECT_EQ(outcome.output.find("error: "), outcome.output.find("error: rank 1 ")) << outcome.output;
    EXPECT_LT(outcome.took, seconds(5));
  }
}

TEST(Processes, RankThatThrowsEndsAllWithItsExitCode) {
  for (const bool forked : {false, true}) {
    const Outcome outcome = launch(3, "throws", forked);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("file x is empty"));
    EXPECT_THAT(outcome.output, HasSubstr(") failed with exit code 2"));
    EXPECT_LT(outcome.took, seconds(5));
  }
}

TEST(Processes, TimeOutNamesWhoArrivedAndWhoDidNot) {
  const Outcome outcome = launch(3, "times_out");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("time-out after 0.8 s in all_reduce #2 of group \"world\" (ranks 0-2), f32 [4, 2]\n"
                                        "  arrived: 0, 2 (all_reduce #2); missing: 1 last did barrier #1"));
  EXPECT_LT(outcome.took, seconds(5));
}

TEST(Processes, TimeOutInASubGroupNamesWorldRanksStepAndPlace) {
  const Outcome outcome = launch(4, "split_times_out");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("time-out after 0.8 s in all_reduce #2 of group \"half\" (ranks 2-3), f32 [4]\n"
                                        "  arrived: 2 (all_reduce #2); missing: 3 last did barrier #1 at step 5, layers.3"));
}

TEST(Processes, RankThatEndsEarlyIsNamed) {
  const Outcome outcome = launch(3, "ends_early");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("all_reduce #2 of group \"world\" (ranks 0-2), f32 [4]: rank 1 has ended; the last that it did was "
                                        "barrier #1"));
  EXPECT_LT(outcome.took, seconds(5));
}

TEST(Processes, CollectiveAfterAnAbandonedOneFails) {
  const Outcome outcome = launch(2, "after_abandoned");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("group \"world\" was left with collectives under way"));
  EXPECT_LT(outcome.took, seconds(5));
}

struct Disagreement {
  const char* scenario;
  int num_ranks;
  const char* message;
};

class Disagreements : public testing::TestWithParam<Disagreement> {};

// Neither gloo's own message, which ends the process, nor a wrong result.
TEST_P(Disagreements, AreNamed) {
  const Outcome outcome = launch(GetParam().num_ranks, GetParam().scenario);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(GetParam().message));
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr("Received data size")));
  EXPECT_LT(outcome.took, seconds(6));
}

INSTANTIATE_TEST_SUITE_P(
    Gloo, Disagreements,
    testing::Values(
        Disagreement{"mismatched", 2, "all_reduce #2 of group \"world\": reduction differs: rank 0 has sum, rank 1 has max (ranks 0-1)"},
        Disagreement{"other_size_checked", 2,
                     "all_gather #1 of group \"world\": size differs: rank 1 gives rank 0 3 elements (f32 [2] + 2 more), rank 0 expects 5"},
        Disagreement{"other_size", 2,
                     "all_reduce #1 of group \"world\": size differs: rank 0 has 6 elements (f64 [6]), rank 1 has 7 (f64 [7]) (ranks 0-1)"},
        Disagreement{"other_large_size", 3, "size differs: rank "},
        Disagreement{"short_broadcast", 3,
                     "broadcast #1 of group \"world\": size differs: rank 0 has 4 elements (f32 [4]), rank 2 has 8 (f32 [8]) (ranks 0-2)"},
        Disagreement{"short_gather", 2, "size differs: rank 1 gives rank 0 3 elements (f32 [2] + 2 more), rank 0 expects 5"},
        Disagreement{"empty_gather", 2,
                     "all_gather #1 of group \"world\": size differs: rank 1 gives rank 0 0 elements (f32), rank 0 expects 5"},
        Disagreement{"other_op", 2, "operation differs: rank 0 does all_reduce f32 [4], rank 1 does broadcast f32 [4]"},
        Disagreement{"short_message", 2, "#1 of group \"world\": sent f32 [4] from rank 0, received f32 [6] at rank 1"}),
    [](const auto& info) { return std::string(info.param.scenario); });

TEST(Processes, SignalsEndAllRanks) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Program polite({HYPER_PARALLEL_DIST_WORKER, "--launch", "2", "--fork", "runs_until_interrupted"}, kNoLauncher);
    ASSERT_TRUE(polite.await_output("ready", seconds(20)));
    kill(polite.process(), signal);
    const Outcome outcome = polite.finish(seconds(10));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("rank 0 stopped by signal " + std::to_string(signal)));
    EXPECT_THAT(outcome.output, HasSubstr("rank 1 stopped by signal " + std::to_string(signal)));

    Program rude({HYPER_PARALLEL_DIST_WORKER, "--launch", "2", "runs_for_ever"}, kNoLauncher);
    ASSERT_TRUE(rude.await_output("ready", seconds(20)));
    kill(rude.process(), signal);
    EXPECT_EQ(rude.finish(seconds(10)).exit_code, 128 + signal);
  }
}

TEST(Processes, RanksDieWithTheirParent) {
  Program program({HYPER_PARALLEL_DIST_WORKER, "--launch", "2", "runs_for_ever"}, kNoLauncher);
  ASSERT_TRUE(program.await_output("ready", seconds(20)));
  kill(program.process(), SIGKILL);
  const Outcome outcome = program.finish(seconds(5));  // the pipe closes only when the ranks have ended too
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_LT(outcome.took, seconds(5));
}

TEST(Processes, UnderRealTorchrun) {
  const char* source = std::getenv("HYPER_PARALLEL_SOURCE");
  const std::string torchrun = std::string(source == nullptr ? "." : source) + "/.venv/bin/torchrun";
  if (!std::filesystem::exists(torchrun)) GTEST_SKIP() << torchrun << " is not there";
  const Outcome outcome = test::run_program(
      {torchrun, "--standalone", "--nproc-per-node=2", "--no-python", HYPER_PARALLEL_DIST_WORKER, "greet"}, seconds(100), kNoLauncher);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 of 2, local 1 of 2"));
}

TEST(Processes, UnderRealMpirun) {
  if (!std::filesystem::exists("/usr/bin/mpirun")) GTEST_SKIP() << "mpirun (Debian package openmpi-bin) is not there";
  const Outcome outcome =
      test::run_program({"/usr/bin/mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3", HYPER_PARALLEL_DIST_WORKER, "greet"},
                        seconds(60), kNoLauncher);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("rank 2 of 3, local 2 of 3"));
}

}  // namespace
}  // namespace hyper_parallel
