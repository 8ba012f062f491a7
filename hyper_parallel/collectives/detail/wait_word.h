// SPDX-License-Identifier: Apache-2.0
// A word that threads of one process wait on: spin, yield, then sleep in the kernel. A wake is a system call only if someone sleeps.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace hyper_parallel::detail {

using Clock = std::chrono::steady_clock;

struct WaitPolicy {
  int spins, yields;  // spinning with more ranks than cores burns the time of the rank that is waited for
};
WaitPolicy wait_policy(int num_ranks);

class alignas(64) WaitWord {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }
  void reset(uint32_t value) { value_.store(value, std::memory_order_relaxed); }  // only while nobody waits
  // Returns the first value other than `old`, or `old` after about `timeout`.
  uint32_t await_change(uint32_t old, WaitPolicy policy, std::chrono::milliseconds timeout);
  // Moves from `from` to `to` and wakes everybody; false if the value was another.
  bool change(uint32_t from, uint32_t to);

 private:
  std::atomic<uint32_t> value_{0}, sleepers_{0};
};

}  // namespace hyper_parallel::detail
