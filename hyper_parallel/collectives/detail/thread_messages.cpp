// SPDX-License-Identifier: Apache-2.0
// Sends and recvs between threads: whoever comes second copies.
#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/detail/thread_group.h"

namespace hyper_parallel::detail {

void Message::wait() { group->complete(*this); }
void Message::abandon() noexcept {
  if (state.load() == kGathering) group->world().fail(group->ranks()[rank], "it left while unwinding from an error");
}

Message* ThreadGroup::new_message(int rank) {
  const std::lock_guard lock(mutex_);
  if (free_messages_.empty()) {
    messages_.push_back(std::make_unique<Message>());
    free_messages_.push_back(messages_.back().get());
  }
  Message* message = free_messages_.back();
  free_messages_.pop_back();
  message->group = this;
  message->rank = rank;
  message->call.clear();
  message->state.reset(kGathering);
  return message;
}

Work ThreadGroup::exchange(Message* message) {
  const bool sends = message->call.op == Op::kSend;
  const int peer = message->call.root;
  const std::pair<int, int> ends = sends ? std::pair(message->rank, peer) : std::pair(peer, message->rank);
  Message* partner = nullptr;
  {
    const std::lock_guard lock(mutex_);
    Channel& channel = channels_[ends];
    message->order = sends ? ++channel.num_sends : ++channel.num_recvs;
    std::deque<Message*>& partners = sends ? channel.recvs : channel.sends;
    if (partners.empty()) {
      (sends ? channel.sends : channel.recvs).push_back(message);
      if (world_.failed_rank() >= 0 || status_[peer].left.load()) message->state.reset(kFailed);
      return Work(message);
    }
    partner = partners.front();
    partners.pop_front();
  }
  const Block& from = sends ? message->call.in[0] : partner->call.in[0];
  const Block& to = sends ? partner->call.out[0] : message->call.out[0];
  if (from.numel != to.numel || message->call.dtype != partner->call.dtype) {
    const std::string text =
        str(operation_text(message->call.op, message->order), ": sent ", (sends ? message : partner)->call.describe(), " from rank ",
            ranks_[ends.first], ", received ", (sends ? partner : message)->call.describe(), " at rank ", ranks_[ends.second]);
    world_.fail(ranks_[message->rank], text);
    partner->state.change(kGathering, kFailed);
    throw CollectiveError(text);
  }
  const void* source = from.data;
  void* target = to.data;
  copy_bytes({&source, 1, &target, 1, from.numel * message->call.element_bytes(), 1, false});
  partner->state.change(kGathering, kFinished);
  message->state.reset(kFinished);
  return Work(message);
}

void ThreadGroup::complete(Message& message) {
  uint32_t now = message.state.load();
  if (now == kGathering) now = message.state.await_change(kGathering, policy_, world_.timeout());
  const std::string operation = now == kFinished ? "" : operation_text(message.call.op, message.order);
  if (now == kFailed) throw_failure(operation, message.rank, message.call.root);
  if (now == kGathering) {
    const int peer = message.call.root;
    const std::string text =
        str("time-out after ", describe(world_.timeout()), " in ", operation, " (", message.call.op == Op::kSend ? "to" : "from", " rank ",
            ranks_[peer], "), ", message.call.describe(), "\n  missing: ", ranks_[peer], " last did ", last_of(peer));
    world_.fail(ranks_[message.rank], text);
    throw CollectiveError(text);
  }
  message.call.finish();
  const std::lock_guard lock(mutex_);
  free_messages_.push_back(&message);
}

}  // namespace hyper_parallel::detail
