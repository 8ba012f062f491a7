// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/log.h"
#include "hyper_parallel/collectives/detail/thread_group.h"
#include "hyper_parallel/collectives/detail/world_builder.h"

namespace hyper_parallel {
namespace {

template <class E>
bool rethrow_as(const std::exception& error, const std::string& message) {
  if (dynamic_cast<const E*>(&error) != nullptr) throw E(message);
  return false;
}

// Throws an error of the same type whose message starts with the rank. What can't be made anew becomes a RuntimeError of ours.
[[noreturn]] void rethrow_with_rank(const std::exception_ptr& cause, int rank) {
  try {
    std::rethrow_exception(cause);
  } catch (const c10::Error& error) {
    throw c10::Error(str("rank ", rank, ": ", error.msg()), error.backtrace());
  } catch (const std::exception& error) {
    const std::string message = str("rank ", rank, ": ", error.what());
    rethrow_as<ConfigError>(error, message) || rethrow_as<DataError>(error, message) || rethrow_as<CheckpointError>(error, message) ||
        rethrow_as<LayoutError>(error, message) || rethrow_as<CollectiveError>(error, message) ||
        rethrow_as<RuntimeError>(error, message) || rethrow_as<InternalError>(error, message);
    if (const auto* ours = dynamic_cast<const Error*>(&error)) throw Error(ours->exit_code(), message);
    rethrow_as<std::invalid_argument>(error, message) || rethrow_as<std::out_of_range>(error, message);
    throw RuntimeError(message);
  }
}

std::string what_of(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

class ThreadRun {
 public:
  ThreadRun(int num_ranks, const std::function<void(World&)>& body, const WorldOptions& options)
      : body_(body), options_(options), causes_(num_ranks) {
    if (num_ranks > 1) shared_ = std::make_shared<detail::ThreadWorld>(num_ranks, options.timeout, detail::wants_checks(options));
  }

  void run() {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank)
      threads.emplace_back([this, rank] {
        run_rank(rank);
        const std::lock_guard lock(mutex_);
        ++num_ended_;
        failed_ |= causes_[rank] != nullptr;
        changed_.notify_one();
      });
    if (options_.abandon) wait_or_abandon();
    for (std::thread& thread : threads) thread.join();
    if (const auto [cause, rank] = first_cause(); cause) rethrow_with_rank(cause, rank);
  }

 private:
  int size() const { return int(causes_.size()); }

  void wait_or_abandon() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return failed_ || num_ended_ == size(); });
    if (changed_.wait_for(lock, options_.failure_grace, [this] { return num_ended_ == size(); })) return;
    const auto [cause, rank] = first_cause();
    lock.unlock();
    try {
      rethrow_with_rank(cause, rank);
    } catch (...) {
      options_.abandon(std::current_exception());
    }
  }

  // The error of the rank that is to blame; if it has none (yet), of any.
  std::pair<std::exception_ptr, int> first_cause() const {
    int first = shared_ != nullptr ? shared_->failed_rank() : -1;
    for (int rank = 0; rank < size() && (first < 0 || !causes_[first]); ++rank) first = rank;
    return {causes_[first], first};
  }

  void run_rank(int rank) {
    at::set_num_threads(1);
    set_log_rank(rank);
    try {
      World world = WorldBuilder::make(rank, size(), rank, size(), ProcessGroup(backend(rank)));
      body_(world);
      if (shared_ != nullptr) shared_->leave(rank);
    } catch (...) {
      const std::exception_ptr cause = std::current_exception();
      {
        const std::lock_guard lock(mutex_);
        causes_[rank] = cause;
      }
      if (shared_ != nullptr) shared_->fail(rank, what_of(cause));
    }
  }

  std::shared_ptr<Backend> backend(int rank) {
    if (shared_ == nullptr) return std::make_shared<detail::SoloBackend>(0, "world", "thread");
    return std::make_shared<detail::ThreadBackend>(shared_, shared_->root(), rank);
  }

  const std::function<void(World&)>& body_;
  const WorldOptions& options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_ended_ = 0;
  bool failed_ = false;
  std::shared_ptr<detail::ThreadWorld> shared_;
  std::vector<std::exception_ptr> causes_;  // written under mutex_
};

}  // namespace

bool detail::wants_checks(const WorldOptions& options) {
  const char* debug = std::getenv("HYPER_PARALLEL_DEBUG");
  bool wanted = options.check_collectives;
  for (const std::string& item : hyper_parallel::split(debug == nullptr ? "" : debug, ',')) {
    if (item == "collectives")
      wanted = true;
    else if (!item.empty())
      throw ConfigError(str("HYPER_PARALLEL_DEBUG: unknown item \"", item, "\" (allowed: collectives)"));
  }
  return wanted;
}

void run_threads(int num_ranks, const std::function<void(World&)>& body, const WorldOptions& options) {
  if (num_ranks < 1) throw ConfigError(str("number of ranks: ", num_ranks, " (allowed: 1 or more)"));
  ThreadRun(num_ranks, body, options).run();
}

World World::single() { return WorldBuilder::make(0, 1, 0, 1, ProcessGroup(std::make_shared<detail::SoloBackend>(0, "world", "thread"))); }

}  // namespace hyper_parallel
