// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/wait_word.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <thread>

namespace hyper_parallel::detail {

WaitPolicy wait_policy(int num_ranks) {
  static const int cores = int(std::thread::hardware_concurrency());
  return num_ranks <= cores ? WaitPolicy{100, 50} : WaitPolicy{0, 20};
}

uint32_t WaitWord::await_change(uint32_t old, WaitPolicy policy, std::chrono::milliseconds timeout) {
  uint32_t now = old;
  for (int i = 0; i < policy.spins; ++i, _mm_pause())
    if ((now = load()) != old) return now;
  for (int i = 0; i < policy.yields; ++i, sched_yield())
    if ((now = load()) != old) return now;
  const Clock::time_point deadline = Clock::now() + timeout;
  sleepers_.fetch_add(1);
  while ((now = value_.load()) == old) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
    if (left <= 0) break;
    timespec span{time_t(left / 1'000'000'000), long(left % 1'000'000'000)};
    syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, old, &span, nullptr, 0);
  }
  sleepers_.fetch_sub(1);
  return now;
}

bool WaitWord::change(uint32_t from, uint32_t to) {
  if (!value_.compare_exchange_strong(from, to)) return false;
  if (sleepers_.load() != 0) syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
  return true;
}

}  // namespace hyper_parallel::detail
