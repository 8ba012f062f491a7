// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/status_board.h"

#include <sstream>

#include "hyper_parallel/base/string.h"

namespace hyper_parallel::detail {
namespace {

std::string key_of(int64_t group, int rank) { return str("last/", group, "/", rank); }

}  // namespace

StatusBoard::StatusBoard(std::shared_ptr<Store> store, int rank, std::chrono::milliseconds interval, bool says_goodbye)
    : store_(std::move(store)), rank_(rank), interval_(interval), says_goodbye_(says_goodbye), thread_([this] { run(); }) {}

StatusBoard::~StatusBoard() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<LastCall> StatusBoard::add_group(int64_t key, std::function<void()> look) {
  auto last = std::make_shared<LastCall>();
  const std::lock_guard lock(mutex_);
  rows_[key] = {last, std::move(look), 0};
  return last;
}

void StatusBoard::remove_group(int64_t key) {
  const std::lock_guard lock(mutex_);
  const auto row = rows_.find(key);
  if (says_goodbye_) publish(key, *row->second.last, true);
  rows_.erase(row);
}

// The store has gone when the run is ending: messages can do without.
void StatusBoard::write(const std::string& key, const std::string& text) try { store_->set(key, text); } catch (const std::exception&) {
}

std::string StatusBoard::read(const std::string& key) try { return store_->try_get(key).value_or(""); } catch (const std::exception&) {
  return "";
}

RankReport StatusBoard::report_of(int64_t key, int rank) {
  std::istringstream in(read(key_of(key, rank)));
  RankReport report;
  int op = 0;
  std::string place;
  in >> report.sequence >> op >> report.left >> report.note.step;
  report.op = Op(op);
  if (std::getline(in >> std::ws, place)) report.note.place = interned_place(place);
  return report;
}

void StatusBoard::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval_, [this] { return stop_; })) {
    for (auto& [key, row] : rows_) {
      const uint64_t sequence = row.last->sequence.load();
      if (sequence != std::exchange(row.published, sequence)) publish(key, *row.last, false);
      row.look();
    }
  }
}

void StatusBoard::publish(int64_t key, const LastCall& last, bool left) {
  const std::string* place = last.place.load();
  const uint64_t sequence = last.sequence.load();
  write(key_of(key, rank_), str(sequence, " ", int(last.op.load()), " ", int(left), " ", last.step.load(), " ", place ? *place : ""));
}

}  // namespace hyper_parallel::detail
