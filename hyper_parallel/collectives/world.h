// SPDX-License-Identifier: Apache-2.0
// One rank's place among all ranks, and the functions that make it. Passed down explicitly; N ranks may live as N threads of one process.
//
//   run_threads(4, [](World& world) { world.group().barrier(); });          // tests and small runs
//   World world = World::from_environment({.backend = "gloo"});             // under torchrun, srun, mpirun or our own launcher
#pragma once
#include <c10/core/Device.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/process_group.h"

namespace hyper_parallel {

struct WorldOptions {
  std::string backend = "gloo";                // for processes: "gloo"; ranks as threads always use "thread"
  std::chrono::milliseconds timeout{600'000};  // of every collective
  // Compare operation, shape, dtype, group and sequence number of all ranks before each collective. Also on with
  // HYPER_PARALLEL_DEBUG=collectives (a list with commas; ConfigError for other items). Threads always compare operation, dtype and sizes.
  bool check_collectives = false;
  // Of run_threads: called when a rank has failed and `failure_grace` later others are still busy outside of collectives. It must end the
  // process or get them to end, as no thread can be ended from outside: run_threads waits for them after it, and always without it.
  std::function<void(std::exception_ptr)> abandon = {};
  std::chrono::milliseconds failure_grace{4'000};
};

class World {
 public:
  // A world of one rank: no store, no sockets.
  static World single();
  // From RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun, our launcher), OMPI_* (mpirun) or SLURM_*
  // (srun), in that order; ConfigError names what is missing or contradictory. Without any of them: single(). For mpirun and srun on one
  // host nothing else is needed; on several hosts mpirun needs MASTER_ADDR and MASTER_PORT (-x), srun takes its first host and a port made
  // from the job id. Collective over all ranks. Sets the log rank, and libtorch's threads to cores / local size unless OMP_NUM_THREADS is
  // set.
  static World from_environment(const WorldOptions& options = {});
  // Whether a launcher's variables are there: from_environment() would not give single().
  static bool launched();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  c10::Device device() const { return device_; }
  const ProcessGroup& group() const { return group_; }  // all ranks

 private:
  friend class WorldBuilder;  // detail/world_builder.h
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  c10::Device device_ = c10::kCPU;
  ProcessGroup group_;
};

// The backends of this build: "thread", and "gloo" if gloo's headers were there.
std::vector<std::string> backend_names();

// Runs body(world) on num_ranks threads (each with one intra-op thread) joined by the thread backend, and returns when all have ended.
// If a rank throws, the others' collectives throw too; the first cause is rethrown here with "rank N: " before its message.
void run_threads(int num_ranks, const std::function<void(World&)>& body, const WorldOptions& options = {});

}  // namespace hyper_parallel
