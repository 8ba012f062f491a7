// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::detail {
namespace {

using Variables = std::map<std::string, std::string>;
using testing::HasSubstr;

std::optional<RankEnvironment> read(const Variables& variables) {
  return read_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const Variables kTorchrun{{"RANK", "3"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "head"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                        {"PMIX_NAMESPACE", "1234"}};
const Variables kSrun{{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "7"},
                      {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "1"},
                      {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "4,3"},
                      {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_NODELIST", "node[03-04]"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Environment, NothingIsNoLauncher) {
  EXPECT_FALSE(read({}));
  EXPECT_FALSE(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}));  // a batch script, not a step
}

TEST(Environment, Torchrun) {
  const RankEnvironment found = *read(kTorchrun);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_size, 2);
  EXPECT_EQ(found.master_address, "head");
  EXPECT_EQ(found.master_port, 29500);
  EXPECT_TRUE(found.external_store);
  EXPECT_EQ(found.attempt, "2");
}

TEST(Environment, MpirunOnOneHostNeedsNoPort) {
  EXPECT_EQ(read(kMpirun)->master_port, 0);
  EXPECT_EQ(read(kMpirun)->rank, 1);
  EXPECT_EQ(read(with(kMpirun, "MASTER_PORT", "4000"))->master_address, "127.0.0.1");
  EXPECT_THAT(error_of(with(kMpirun, "OMPI_COMM_WORLD_LOCAL_SIZE", "2")), HasSubstr("MASTER_PORT is missing"));
}

TEST(Environment, SrunTakesItsFirstHost) {
  const RankEnvironment found = *read(kSrun);
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.size, 7);
  EXPECT_EQ(found.local_size, 3);
  EXPECT_EQ(found.master_address, "node03");
  EXPECT_GE(found.master_port, 15000);
  EXPECT_LT(found.master_port, 30000);
  EXPECT_EQ(read(with(kSrun, "SLURM_PROCID", "0"))->master_port, found.master_port);
  EXPECT_NE(read(with(kSrun, "SLURM_JOB_ID", "78"))->master_port, found.master_port);
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("gpu[7,9]"), "gpu7");
  EXPECT_EQ(first_host("login,gpu[7,9]"), "login");
  EXPECT_EQ(tasks_on_node("4(x2),3", 1), 4);
  EXPECT_EQ(tasks_on_node("4(x2),3", 2), 3);
  EXPECT_THROW(tasks_on_node("4(x2),3", 3), ConfigError);
}

TEST(Environment, MissingAndContradictoryValuesAreNamed) {
  for (const auto& [name, value] : kTorchrun) {
    if (name.starts_with("TORCHELASTIC")) continue;
    EXPECT_THAT(error_of(without(kTorchrun, name)), HasSubstr("environment variable " + name + " is missing")) << name;
  }
  EXPECT_EQ(error_of(with(kTorchrun, "RANK", "8")), "environment variable RANK=8 (allowed: 0 to 7, below WORLD_SIZE=8)");
  EXPECT_EQ(error_of(with(kTorchrun, "RANK", "x")), "environment variable RANK=x (allowed: 0 to 7, below WORLD_SIZE=8)");
  EXPECT_EQ(error_of(with(kTorchrun, "LOCAL_RANK", "2")), "environment variable LOCAL_RANK=2 (allowed: 0 to 1, below LOCAL_WORLD_SIZE=2)");
  EXPECT_EQ(error_of(with(kTorchrun, "LOCAL_WORLD_SIZE", "9")),
            "environment variable LOCAL_WORLD_SIZE=9 (allowed: 1 to 8, up to WORLD_SIZE=8)");
  EXPECT_EQ(error_of(with(kTorchrun, "MASTER_PORT", "70000")), "environment variable MASTER_PORT=70000 (allowed: 1 to 65535)");
  Variables both = kMpirun;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  both["OMPI_COMM_WORLD_SIZE"] = "8";
  EXPECT_THAT(error_of(both), HasSubstr("RANK=3 contradicts OMPI_COMM_WORLD_RANK=1"));
}

}  // namespace
}  // namespace hyper_parallel::detail
