// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that are threads of one process.
//
// A collective is a Slot: each rank writes its call into its own Entry and arrives; the last to arrive compares the calls, then does small
// work itself or opens the tiles. Ranks that wait take tiles until all are done, so nobody waits for a rank that is not on a core. Slots
// are in a list that grows when needed, so posting never blocks; used slots go round. Nothing is done for a rank by itself: progress is
// made by those who wait.
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/detail/backend.h"
#include "hyper_parallel/collectives/detail/tiles.h"
#include "hyper_parallel/collectives/detail/wait_word.h"

namespace hyper_parallel::detail {

enum SlotState : uint32_t { kGathering, kOpen, kFinished, kFailed };

class ThreadGroup;
class ThreadWorld;
struct Slot;

struct alignas(64) Entry final : PendingRequest {
  void wait() override;
  bool done() override;
  void abandon() noexcept override;

  Call call;
  ThreadGroup* group = nullptr;
  Slot* slot = nullptr;
  int rank = 0;
};

struct Slot {
  explicit Slot(ThreadGroup& group);
  void reset(uint64_t new_sequence);

  WaitWord state;
  TileList tiles;
  alignas(64) std::atomic<int> num_arrived{0};
  std::atomic<int> num_released{0};
  std::atomic<Slot*> next{nullptr};
  uint64_t sequence = 0;
  std::unique_ptr<Entry[]> entries;
  std::vector<const Call*> calls;
};

// A send or recv that waits for its partner.
struct Message final : PendingRequest {
  void wait() override;
  bool done() override { return state.load() != kGathering; }
  void abandon() noexcept override;

  WaitWord state;
  Call call;
  ThreadGroup* group = nullptr;
  int rank = 0;
  uint64_t order = 0;
};

class ThreadGroup {
 public:
  ThreadGroup(ThreadWorld& world, std::vector<int> ranks, std::string name);

  int size() const { return int(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  ThreadWorld& world() const { return world_; }
  WaitPolicy policy() const { return policy_; }

  Slot* first_slot() { return first_; }
  Slot* next_slot(Slot& slot);
  void arrive(Entry& entry);    // posts; throws on mismatch
  void complete(Entry& entry);  // waits and releases; throws
  bool progress(Entry& entry);  // true when complete
  void release(Entry& entry);
  Work exchange(Message* message);  // posts a send or recv
  void complete(Message& message);
  Message* new_message(int rank);

  void fail_all();       // every collective that is not finished fails
  void leave(int rank);  // this rank will never call again
  ThreadGroup& member_group(int64_t key, const std::vector<int>& members, const std::string& name);

 private:
  struct alignas(64) RankStatus {
    std::atomic<uint64_t> sequence{0};  // of the last collective that was posted
    std::atomic<int64_t> step{-1};      // the rank's ProgressNote then
    std::atomic<const std::string*> place{nullptr};
    std::atomic<Op> op{Op::kNone};
    std::atomic<bool> left{false};
  };
  struct Channel {
    std::deque<Message*> sends, recvs;
    uint64_t num_sends = 0, num_recvs = 0;
  };

  void open(Slot& slot, int rank);
  uint32_t await(Entry& entry, uint32_t old);
  // `gone`: the rank that left without taking part, -1 if there is none (then another rank has failed).
  [[noreturn]] void throw_failure(const std::string& operation, int rank, int gone) const;
  [[noreturn]] void throw_time_out(Entry& entry);
  std::string operation_text(Op op, uint64_t sequence) const;
  std::string last_of(int rank) const;
  int missing_for_good(const Slot& slot) const;  // a rank that left without arriving, or -1

  ThreadWorld& world_;
  const std::vector<int> ranks_;
  const std::string name_;
  const WaitPolicy policy_;
  std::unique_ptr<RankStatus[]> status_;
  Slot* first_ = nullptr;

  std::mutex mutex_;  // everything below
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;
  std::map<std::pair<int, int>, Channel> channels_;  // (source, destination)
  std::vector<std::unique_ptr<Message>> messages_;
  std::vector<Message*> free_messages_;
  std::map<std::pair<int64_t, std::vector<int>>, ThreadGroup*> members_;
};

// What all threads of one run_threads share: the groups, which live as long as it does, and the first failure.
class ThreadWorld {
 public:
  ThreadWorld(int num_ranks, std::chrono::milliseconds timeout, bool debug);

  ThreadGroup& add_group(std::vector<int> ranks, std::string name);
  ThreadGroup& root() { return *root_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  bool debug() const { return debug_; }

  // The first call wins: everybody's collectives then fail, saying `reason`.
  void fail(int world_rank, const std::string& reason);
  void leave(int world_rank);
  int failed_rank() const { return failed_rank_.load(std::memory_order_acquire); }  // -1: none
  std::string reason();

 private:
  const std::chrono::milliseconds timeout_;
  const bool debug_;
  std::atomic<int> failed_rank_{-1};
  std::mutex mutex_;
  std::string reason_;
  std::vector<std::unique_ptr<ThreadGroup>> groups_;
  std::vector<bool> left_;
  ThreadGroup* root_ = nullptr;
};

class ThreadBackend final : public Backend {
 public:
  ThreadBackend(std::shared_ptr<ThreadWorld> world, ThreadGroup& group, int rank);
  const char* kind() const override { return "thread"; }
  bool checks_calls() const override { return world_->debug(); }
  Call& begin() override;
  Work post(Call& call) override;
  int64_t propose_key() override { return last_key_ + 1; }
  void use_key(int64_t key) override { last_key_ = key; }
  std::shared_ptr<Backend> make_subgroup(std::vector<int> members, int rank, const std::string& name, int64_t key) override;

 private:
  std::shared_ptr<ThreadWorld> world_;
  ThreadGroup& group_;
  Slot* slot_;  // of the next collective
  int64_t last_key_ = 0;
};

// "30 s", "0.5 s"
std::string describe(std::chrono::milliseconds time);
// "ranks 0-3", "ranks 0, 2"
std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace hyper_parallel::detail
