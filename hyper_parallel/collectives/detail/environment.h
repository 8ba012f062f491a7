// SPDX-License-Identifier: Apache-2.0
// Reads what torchrun, mpirun or srun tell a process about its place. Takes the variables through a function, so that tests need no real
// ones.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace hyper_parallel::detail {

using Getenv = std::function<const char*(const char* name)>;

struct RankEnvironment {
  std::string launcher;  // "torchrun", "mpirun" or "srun"
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string master_address;
  int master_port = 0;          // 0: all ranks are on this host; rank 0 chooses and publishes it in a file named after `job`
  bool external_store = false;  // the launcher serves the store
  std::string attempt;          // of an elastic launcher: keys of earlier attempts don't count
  std::string job;
};

// nullopt: no launcher. ConfigError names the variable, its value and what is allowed.
std::optional<RankEnvironment> read_environment(const Getenv& get);

// "node[03-05,9],b" -> "node03"
std::string first_host(const std::string& slurm_node_list);
// "4(x2),3" and node 2 -> 3
int tasks_on_node(const std::string& slurm_tasks_per_node, int node);

}  // namespace hyper_parallel::detail
