// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <csignal>

#include "hyper_parallel/collectives/launcher.h"

namespace hyper_parallel {
namespace {

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void note_signal(int signal) { received.store(signal, std::memory_order_relaxed); }

}  // namespace

void handle_interrupts() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART | int(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return interrupt_signal() != 0; }
int interrupt_signal() { return received.load(std::memory_order_relaxed); }

}  // namespace hyper_parallel
