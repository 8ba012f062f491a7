// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/detail/thread_group.h"

namespace hyper_parallel::detail {

ThreadWorld::ThreadWorld(int num_ranks, std::chrono::milliseconds timeout, bool debug)
    : timeout_(timeout), debug_(debug), left_(num_ranks, false) {
  std::vector<int> ranks(num_ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  root_ = &add_group(std::move(ranks), "world");
}

ThreadGroup& ThreadWorld::add_group(std::vector<int> ranks, std::string name) {
  auto group = std::make_unique<ThreadGroup>(*this, std::move(ranks), std::move(name));
  ThreadGroup& added = *group;
  std::vector<bool> left;
  {
    const std::lock_guard lock(mutex_);
    groups_.push_back(std::move(group));
    left = left_;
  }
  for (int r = 0; r < added.size(); ++r)
    if (left[added.ranks()[r]]) added.leave(r);
  if (failed_rank() >= 0) added.fail_all();
  return added;
}

void ThreadWorld::fail(int world_rank, const std::string& reason) {
  std::vector<ThreadGroup*> groups;
  {
    const std::lock_guard lock(mutex_);
    if (failed_rank() >= 0) return;
    reason_ = reason;
    failed_rank_.store(world_rank, std::memory_order_release);
    for (const auto& group : groups_) groups.push_back(group.get());
  }
  for (ThreadGroup* group : groups) group->fail_all();
}

void ThreadWorld::leave(int world_rank) {
  std::vector<ThreadGroup*> groups;
  {
    const std::lock_guard lock(mutex_);
    left_[world_rank] = true;
    for (const auto& group : groups_) groups.push_back(group.get());
  }
  for (ThreadGroup* group : groups)
    for (int r = 0; r < group->size(); ++r)
      if (group->ranks()[r] == world_rank) group->leave(r);
}

std::string ThreadWorld::reason() {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::string describe(std::chrono::milliseconds time) { return str(double(time.count()) / 1000, " s"); }

std::string describe_ranks(const std::vector<int>& ranks) {
  const bool dense =
      ranks.size() > 1 && ranks.back() - ranks.front() == int(ranks.size()) - 1 && std::is_sorted(ranks.begin(), ranks.end());
  if (dense) return str("ranks ", ranks.front(), "-", ranks.back());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += str(i == 0 ? "" : ", ", ranks[i]);
  return text;
}

Call& SoloBackend::begin() { throw InternalError("a group of one rank has nothing to send"); }
Work SoloBackend::post(Call&) { throw InternalError("a group of one rank has nothing to send"); }
std::shared_ptr<Backend> SoloBackend::make_subgroup(std::vector<int> members, int, const std::string& name, int64_t) {
  return std::make_shared<SoloBackend>(members[0], name, kind_);
}

}  // namespace hyper_parallel::detail
