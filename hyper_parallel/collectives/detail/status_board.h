// SPDX-License-Identifier: Apache-2.0
// What each process did last in each group, kept in the store so that a rank whose wait times out can say who is missing.
// One thread for each process writes what has changed, a few times a second at most: nothing is written on the path of a collective.
#pragma once
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "hyper_parallel/collectives/detail/call.h"
#include "hyper_parallel/collectives/detail/store.h"

namespace hyper_parallel::detail {

struct LastCall {
  std::atomic<uint64_t> sequence{0};
  std::atomic<Op> op{Op::kNone};
};

class StatusBoard {
 public:
  StatusBoard(std::shared_ptr<Store> store, int rank, std::chrono::milliseconds interval);
  ~StatusBoard();
  std::shared_ptr<LastCall> add_group(int64_t key);
  // Of another rank; sequence 0 if it has told nothing yet or can't be asked.
  std::pair<uint64_t, Op> last_call(int64_t key, int rank);

 private:
  struct Row {
    std::weak_ptr<LastCall> last;
    uint64_t published = 0;
  };
  void run();
  void publish();

  std::shared_ptr<Store> store_;
  const int rank_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::map<int64_t, Row> rows_;
  std::thread thread_;
};

}  // namespace hyper_parallel::detail
