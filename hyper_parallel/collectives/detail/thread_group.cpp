// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/thread_group.h"

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::detail {

Slot::Slot(ThreadGroup& group) : entries(new Entry[group.size()]) {
  for (int r = 0; r < group.size(); ++r) {
    entries[r].group = &group;
    entries[r].slot = this;
    entries[r].rank = r;
    calls.push_back(&entries[r].call);
  }
}

void Slot::reset(uint64_t new_sequence) {
  sequence = new_sequence;
  state.reset(kGathering);
  num_arrived.store(0, std::memory_order_relaxed);
  num_released.store(0, std::memory_order_relaxed);
  next.store(nullptr, std::memory_order_relaxed);
}

void Entry::wait() { group->complete(*this); }
bool Entry::done() { return group->progress(*this); }

void Entry::abandon() noexcept {
  if (slot->state.load() == kFinished) {
    call.copy_back.clear();
    call.finish();
    return group->release(*this);
  }
  // Without release the slot is not used again, so the tensors live on for whoever is still working on them.
  group->world().fail(group->ranks()[rank], "it left while unwinding from an error");
}

ThreadGroup::ThreadGroup(ThreadWorld& world, std::vector<int> ranks, std::string name)
    : world_(world),
      ranks_(std::move(ranks)),
      name_(std::move(name)),
      policy_(wait_policy(size())),
      status_(new RankStatus[ranks_.size()]) {
  slots_.push_back(std::make_unique<Slot>(*this));
  first_ = slots_.back().get();
  first_->reset(1);
}

// The first rank that needs the slot after `slot` chooses it. Every rank asks before it arrives at `slot`, so `slot` can't go round before
// that.
Slot* ThreadGroup::next_slot(Slot& slot) {
  if (Slot* next = slot.next.load(std::memory_order_acquire)) return next;
  const std::lock_guard lock(mutex_);
  if (Slot* next = slot.next.load(std::memory_order_relaxed)) return next;
  if (free_.empty()) {
    slots_.push_back(std::make_unique<Slot>(*this));
    free_.push_back(slots_.back().get());
  }
  Slot* next = free_.back();
  free_.pop_back();
  next->reset(slot.sequence + 1);
  if (world_.failed_rank() >= 0 || missing_for_good(*next) >= 0) next->state.reset(kFailed);
  slot.next.store(next, std::memory_order_release);
  return next;
}

void ThreadGroup::arrive(Entry& entry) {
  Slot& slot = *entry.slot;
  RankStatus& status = status_[entry.rank];
  status.op.store(entry.call.op, std::memory_order_relaxed);
  status.step.store(progress_note.step, std::memory_order_relaxed);
  status.place.store(progress_note.place, std::memory_order_release);
  status.sequence.store(slot.sequence, std::memory_order_release);
  if (world_.failed_rank() >= 0) throw_failure(operation_text(entry.call.op, slot.sequence), entry.rank, -1);
  if (slot.num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) open(slot, entry.rank);
}

void ThreadGroup::open(Slot& slot, int rank) {
  std::string mismatch = first_mismatch(slot.calls, ranks_, world_.debug());
  if (mismatch.empty()) mismatch = slot.tiles.plan(slot.calls, ranks_);
  if (!mismatch.empty()) {
    const Op op = slot.calls[0]->op;
    const std::string text = str(operation_text(op, slot.sequence), ": ", mismatch, " (", describe_ranks(ranks_), ")");
    world_.fail(ranks_[rank], text);
    throw CollectiveError(text);
  }
  if (slot.tiles.small()) {
    slot.tiles.run_all(slot.calls);
    slot.state.change(kGathering, kFinished);
  } else {
    slot.state.change(kGathering, kOpen);
  }
}

uint32_t ThreadGroup::await(Entry& entry, uint32_t old) {
  const uint32_t now = entry.slot->state.await_change(old, policy_, world_.timeout());
  if (now == old) throw_time_out(entry);
  return now;
}

void ThreadGroup::complete(Entry& entry) {
  Slot& slot = *entry.slot;
  uint32_t now = slot.state.load();
  if (now == kGathering) now = await(entry, kGathering);
  if (now == kOpen) {
    bool finished = false;
    while (slot.tiles.run_one(slot.calls, finished)) {
    }
    if (finished) slot.state.change(kOpen, kFinished);
    now = slot.state.load();
    if (now == kOpen) now = await(entry, kOpen);
  }
  if (now == kFailed) throw_failure(operation_text(entry.call.op, slot.sequence), entry.rank, missing_for_good(slot));
  entry.call.finish();
  release(entry);
}

bool ThreadGroup::progress(Entry& entry) {
  Slot& slot = *entry.slot;
  if (slot.state.load() == kOpen) {
    bool finished = false;
    slot.tiles.run_one(slot.calls, finished);
    if (finished) slot.state.change(kOpen, kFinished);
  }
  const uint32_t now = slot.state.load();
  return now == kFinished || now == kFailed;
}

void ThreadGroup::release(Entry& entry) {
  Slot& slot = *entry.slot;
  if (slot.num_released.fetch_add(1, std::memory_order_acq_rel) + 1 < size()) return;
  const std::lock_guard lock(mutex_);
  free_.push_back(&slot);
}

int ThreadGroup::missing_for_good(const Slot& slot) const {
  for (int r = 0; r < size(); ++r)
    if (status_[r].left.load() && status_[r].sequence.load() < slot.sequence) return r;
  return -1;
}

std::string ThreadGroup::operation_text(Op op, uint64_t sequence) const {
  return str(name_of(op), " #", sequence, " of group \"", name_, "\"");
}

std::string ThreadGroup::last_of(int rank) const {
  const RankStatus& status = status_[rank];
  const uint64_t sequence = status.sequence.load(std::memory_order_acquire);
  return describe_last(status.op.load(), sequence, {status.step.load(), status.place.load()});
}

void ThreadGroup::throw_failure(const std::string& operation, int rank, int gone) const {
  if (world_.failed_rank() < 0 && gone >= 0) {
    const std::string text = str(operation, ": rank ", ranks_[gone], " has ended; the last that it did was ", last_of(gone));
    world_.fail(ranks_[rank], text);
    throw CollectiveError(text);
  }
  throw CollectiveError(str(operation, ": rank ", world_.failed_rank(), " failed: ", world_.reason()));
}

void ThreadGroup::throw_time_out(Entry& entry) {
  const Slot& slot = *entry.slot;
  std::string arrived, missing;
  for (int r = 0; r < size(); ++r) {
    if (status_[r].sequence.load() >= slot.sequence)
      arrived += str(arrived.empty() ? "" : ", ", ranks_[r]);
    else
      missing += str(missing.empty() ? "" : "; ", ranks_[r], " last did ", last_of(r));
  }
  const std::string text = str("time-out after ", describe(world_.timeout()), " in ", operation_text(entry.call.op, slot.sequence), " (",
                               describe_ranks(ranks_), "), ", entry.call.describe(), "\n  arrived: ", arrived, " (", name_of(entry.call.op),
                               " #", slot.sequence, "); missing: ", missing);
  world_.fail(ranks_[entry.rank], text);
  throw CollectiveError(text);
}

void ThreadGroup::fail_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& slot : slots_) slot->state.change(kGathering, kFailed) || slot->state.change(kOpen, kFailed);
  for (const auto& message : messages_) message->state.change(kGathering, kFailed);
}

void ThreadGroup::leave(int rank) {
  status_[rank].left.store(true);
  const std::lock_guard lock(mutex_);
  const uint64_t last = status_[rank].sequence.load();
  for (const auto& slot : slots_)
    if (slot->sequence > last) slot->state.change(kGathering, kFailed);
  for (auto& [ends, channel] : channels_) {
    if (ends.first == rank)
      for (Message* message : channel.recvs) message->state.change(kGathering, kFailed);
    if (ends.second == rank)
      for (Message* message : channel.sends) message->state.change(kGathering, kFailed);
  }
}

ThreadGroup& ThreadGroup::member_group(int64_t key, const std::vector<int>& members, const std::string& name) {
  const std::lock_guard lock(mutex_);
  ThreadGroup*& group = members_[{key, members}];
  if (group == nullptr) group = &world_.add_group(members, name);
  return *group;
}

ThreadBackend::ThreadBackend(std::shared_ptr<ThreadWorld> world, ThreadGroup& group, int rank)
    : Backend(group.ranks(), rank, group.name()), world_(std::move(world)), group_(group), slot_(group.first_slot()) {}

// Sends and recvs are begun in the entry too, since only post() knows that no collective comes of it.
Call& ThreadBackend::begin() {
  Call& call = slot_->entries[rank()].call;
  call.clear();
  return call;
}

Work ThreadBackend::post(Call& call) {
  if (call.op == Op::kSend || call.op == Op::kRecv) {
    Message* message = group_.new_message(rank());
    std::swap(message->call, call);
    return group_.exchange(message);
  }
  Entry& entry = slot_->entries[rank()];
  slot_ = group_.next_slot(*slot_);
  group_.arrive(entry);
  return Work(&entry);
}

std::shared_ptr<Backend> ThreadBackend::make_subgroup(std::vector<int> members, int rank, const std::string& name, int64_t key) {
  if (members.size() == 1) return std::make_shared<SoloBackend>(members[0], name, kind());
  return std::make_shared<ThreadBackend>(world_, group_.member_group(key, members, name), rank);
}

}  // namespace hyper_parallel::detail
