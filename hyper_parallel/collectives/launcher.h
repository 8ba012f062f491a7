// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a run as processes of this host and looks after them until all have ended.
//
//   int code = launch_processes({.num_ranks = 4, .child = [&] { return train(World::from_environment(), config); }});
//   int code = launch_processes({.num_ranks = 4, .argv = {"/usr/bin/program", "--flag"}});
//
// Ranks find each other by the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT); the parent
// serves the store on a port that the kernel chooses. A child function runs in a fork without exec, which saves loading libtorch again (0.2
// s and more).
//
// When a rank fails (exit code other than 0, or a signal), the others get SIGTERM, and SIGKILL after `grace`; the last line on standard
// error names the first that failed: "rank 2 (process 123) was killed by signal 9 (Killed)". SIGINT and SIGTERM go on to all ranks, which
// then have `stop_grace` to end by themselves. Ranks die with their parent, whatever ends it.
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace hyper_parallel {

struct LaunchOptions {
  int num_ranks = 1;
  std::vector<std::string> argv;  // program and arguments; or
  std::function<int()> child;     // what each rank runs; its value is the exit code, an exception is printed and gives its own
  std::chrono::milliseconds grace{2000};
  std::chrono::milliseconds stop_grace{30'000};
};

// 0 if all ranks ended with 0; 2 if the first that failed had exit code 2 (the user's input), else 1; 128 + signal if one was forwarded and
// ranks died of it or ended with that exit code. InternalError if `child` is given and this process has more than one thread (a fork would
// lose them).
int launch_processes(const LaunchOptions& options);

// SIGINT and SIGTERM as a question. After handle_interrupts() the first of them only sets the flag, for all ranks that are threads of this
// process; the program polls it, where all ranks agree on the answer, and ends in order. A second one ends the process at once.
void handle_interrupts();
bool interrupted();
int interrupt_signal();  // the signal, 0 if none

}  // namespace hyper_parallel
