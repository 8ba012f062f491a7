// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/status_board.h"

#include <sstream>

#include "hyper_parallel/base/string.h"

namespace hyper_parallel::detail {
namespace {

std::string key_of(int64_t group, int rank) { return str("last/", group, "/", rank); }

}  // namespace

StatusBoard::StatusBoard(std::shared_ptr<Store> store, int rank, std::chrono::milliseconds interval)
    : store_(std::move(store)), rank_(rank), interval_(interval), thread_([this] { run(); }) {}

StatusBoard::~StatusBoard() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<LastCall> StatusBoard::add_group(int64_t key) {
  auto last = std::make_shared<LastCall>();
  const std::lock_guard lock(mutex_);
  rows_[key] = {last, 0};
  return last;
}

std::pair<uint64_t, Op> StatusBoard::last_call(int64_t key, int rank) try {
  const auto text = store_->try_get(key_of(key, rank));
  if (!text) return {0, Op::kNone};
  std::istringstream in(*text);
  uint64_t sequence = 0;
  int op = 0;
  in >> sequence >> op;
  return {sequence, Op(op)};
} catch (const std::exception&) {
  return {0, Op::kNone};
}

void StatusBoard::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval_, [this] { return stop_; })) publish();
}

void StatusBoard::publish() {
  for (auto& [key, row] : rows_) {
    const auto last = row.last.lock();
    if (last == nullptr) continue;
    const uint64_t sequence = last->sequence.load();
    if (sequence == row.published) continue;
    try {
      store_->set(key_of(key, rank_), str(sequence, " ", int(last->op.load())));
    } catch (const std::exception&) {
      return;  // the store has gone: the run is ending, and the message can do without
    }
    row.published = sequence;
  }
}

}  // namespace hyper_parallel::detail
