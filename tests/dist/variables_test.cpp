// SPDX-License-Identifier: Apache-2.0
// Ranks that the test starts itself, with the variables of an srun step and of HYPER_PARALLEL_DEBUG: nobody ends one for another's failure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "tests/support/program.h"

namespace hyper_parallel {
namespace {

using std::chrono::seconds;
using test::Outcome;
using test::Program;

using Variables = std::vector<std::string>;

// A job that no other test has, and nothing of the launcher that started this one.
Variables job_of(int rank) {
  Variables all{"HYPER_PARALLEL_DEBUG"};
  for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_NODEID", "SLURM_NTASKS",
                           "SLURM_STEP_NUM_TASKS", "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST"})
    all.push_back(name);
  static int num_steps = 0;
  if (rank == 0) ++num_steps;
  for (const std::string& item : {"SLURM_JOB_ID=" + std::to_string(getpid()), "SLURM_STEP_ID=" + std::to_string(num_steps),
                                  "SLURM_PROCID=" + std::to_string(rank), std::string("SLURM_NODELIST=localhost")})
    all.push_back(item);
  return all;
}

Variables on_one_host(int rank) { return {"SLURM_NTASKS=2", "SLURM_TASKS_PER_NODE=2", "SLURM_LOCALID=" + std::to_string(rank)}; }

std::vector<Outcome> run_pair(const std::string& scenario, const std::function<Variables(int rank)>& variables_of,
                              const Variables& more = {}) {
  std::vector<std::unique_ptr<Program>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Variables all = job_of(rank);
    for (const std::string& item : variables_of(rank)) all.push_back(item);
    all.insert(all.end(), more.begin(), more.end());
    ranks.push_back(std::make_unique<Program>(Variables{HYPER_PARALLEL_DIST_WORKER, scenario}, all));
  }
  std::vector<Outcome> outcomes;
  for (const auto& rank : ranks) outcomes.push_back(rank->finish(seconds(30)));
  return outcomes;
}

std::string free_port() {
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(descriptor);
  return std::to_string(ntohs(address.sin_port));
}

void expect_greetings(const std::vector<Outcome>& outcomes, const Variables& greetings) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].exit_code, 0) << outcomes[rank].output;
    EXPECT_EQ(outcomes[rank].output, greetings[rank] + "\n");
  }
}

TEST(Slurm, OneHostNeedsNoPort) {
  expect_greetings(run_pair("greet", on_one_host), {"rank 0 of 2, local 0 of 2", "rank 1 of 2, local 1 of 2"});
}

// A step that is smaller than its job.
TEST(Slurm, TheStepsVariablesWin) {
  const auto variables = [](int rank) {
    return Variables{"SLURM_NTASKS=8", "SLURM_TASKS_PER_NODE=4(x2)", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_TASKS_PER_NODE=2",
                     "SLURM_LOCALID=" + std::to_string(rank)};
  };
  expect_greetings(run_pair("greet", variables), {"rank 0 of 2, local 0 of 2", "rank 1 of 2, local 1 of 2"});
}

TEST(Slurm, OneHostWithAPort) {
  const Variables port{"MASTER_PORT=" + free_port()};
  expect_greetings(run_pair("greet", on_one_host, port), {"rank 0 of 2, local 0 of 2", "rank 1 of 2, local 1 of 2"});
}

// The first host of the step's list is rank 0's.
TEST(Slurm, TwoHosts) {
  const auto variables = [](int rank) {
    return Variables{"SLURM_NTASKS=2",
                     "SLURM_TASKS_PER_NODE=1(x2)",
                     "SLURM_LOCALID=0",
                     "SLURM_NODEID=" + std::to_string(rank),
                     "SLURM_STEP_NODELIST=localhost,another",
                     "SLURM_NODELIST=wrong[1-2]"};
  };
  const Variables port{"MASTER_PORT=" + free_port()};
  expect_greetings(run_pair("greet", variables, port), {"rank 0 of 2, local 0 of 1", "rank 1 of 2, local 0 of 1"});
}

struct DebugCase {
  const char *scenario, *op0, *op1;  // each rank names its own operation
  const char* difference;
};

class DebugVariable : public testing::TestWithParam<DebugCase> {};

TEST_P(DebugVariable, EachRankEndsAndNamesTheDifference) {
  const auto outcomes = run_pair(GetParam().scenario, on_one_host, {"HYPER_PARALLEL_DEBUG=collectives", "HYPER_PARALLEL_LOG=error"});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(outcomes[rank].exit_code, 1);
    EXPECT_EQ(outcomes[rank].output, "error: rank " + std::to_string(rank) + ": " + (rank == 0 ? GetParam().op0 : GetParam().op1) +
                                         " #1 of group \"world\": " + GetParam().difference + " (ranks 0-1)\n");
    EXPECT_LT(outcomes[rank].took, seconds(5));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, DebugVariable,
    testing::Values(DebugCase{"other_op_patient", "all_reduce", "broadcast",
                              "operation differs: rank 0 does all_reduce f32 [4], rank 1 does broadcast f32 [4]"},
                    DebugCase{"other_shape", "all_reduce", "all_reduce", "shape differs: rank 0 has [2, 6], rank 1 has [3, 4]"},
                    DebugCase{"other_dtype", "all_reduce", "all_reduce", "dtype differs: rank 0 has f32, rank 1 has i32"}),
    [](const auto& info) { return std::string(info.param.scenario); });

TEST(DebugVariableOff, NothingIsCompared) {
  for (const Outcome& outcome : run_pair("other_shape", on_one_host)) EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(DebugVariableWrong, IsRefused) {
  for (const Outcome& outcome : run_pair("greet", on_one_host, {"HYPER_PARALLEL_DEBUG=collectives,collective"})) {
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.output, testing::HasSubstr("HYPER_PARALLEL_DEBUG: unknown item \"collective\" (allowed: collectives)"));
  }
}

TEST(DebugVariableOn, RanksThatAgreeGoOn) {
  for (const Outcome& outcome : run_pair("greet", on_one_host, {"HYPER_PARALLEL_DEBUG=,collectives,"}))
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

}  // namespace
}  // namespace hyper_parallel
