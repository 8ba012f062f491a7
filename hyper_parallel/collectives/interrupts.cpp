// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <csignal>

#include "hyper_parallel/collectives/launcher.h"

namespace hyper_parallel {
namespace {

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void note_signal(int signal) {
  received.store(signal, std::memory_order_relaxed);
  std::signal(SIGINT, SIG_DFL);  // the next one, of either kind, ends the process
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

void handle_interrupts() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return interrupt_signal() != 0; }
int interrupt_signal() { return received.load(std::memory_order_relaxed); }

}  // namespace hyper_parallel
