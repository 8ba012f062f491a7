// SPDX-License-Identifier: Apache-2.0
// What each process did last in each group, kept in the store so that a rank whose wait times out or fails can say who is missing.
// One thread for each process writes what has changed, a few times a second at most, and has a look at what is under way: nothing is
// written on the path of a collective.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "hyper_parallel/collectives/detail/call.h"
#include "hyper_parallel/collectives/detail/store.h"

namespace hyper_parallel::detail {

// Written by the rank's own thread when it posts.
struct LastCall {
  std::atomic<uint64_t> sequence{0};
  std::atomic<Op> op{Op::kNone};
  std::atomic<int64_t> step{-1};
  std::atomic<const std::string*> place{nullptr};
};

// Of another rank, as far as it has told.
struct RankReport {
  uint64_t sequence = 0;
  Op op = Op::kNone;
  bool left = false;  // it has let go of the group
  ProgressNote note;
  std::string describe() const { return describe_last(op, sequence, note); }
};

class StatusBoard {
 public:
  // `says_goodbye`: the store outlives all ranks, so that one that leaves a group can still tell.
  StatusBoard(std::shared_ptr<Store> store, int rank, std::chrono::milliseconds interval, bool says_goodbye);
  ~StatusBoard();
  // `look` is called by the board's thread after each interval. It must not call add_group or remove_group.
  std::shared_ptr<LastCall> add_group(int64_t key, std::function<void()> look);
  void remove_group(int64_t key);  // `look` runs no more when it returns

  // From any thread; without a store that answers they do nothing.
  RankReport report_of(int64_t key, int rank);
  void write(const std::string& key, const std::string& text);
  std::string read(const std::string& key);  // "" if it isn't there

 private:
  struct Row {
    std::shared_ptr<LastCall> last;
    std::function<void()> look;
    uint64_t published = 0;
  };
  void run();
  void publish(int64_t key, const LastCall& last, bool left);

  std::shared_ptr<Store> store_;
  const int rank_;
  const std::chrono::milliseconds interval_;
  const bool says_goodbye_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::map<int64_t, Row> rows_;
  std::thread thread_;
};

}  // namespace hyper_parallel::detail
