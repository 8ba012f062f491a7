// SPDX-License-Identifier: Apache-2.0
// What the gloo backend says when ranks don't agree, come late or go away. Ranks tell what they do through the store, but only when
// something takes long; in debug mode before each collective, by messages.
#include <algorithm>
#include <bit>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/detail/gloo_backend.h"
#include "hyper_parallel/collectives/detail/thread_group.h"

namespace hyper_parallel::detail {
namespace {

constexpr auto kBlameDelay = std::chrono::milliseconds(500), kRetryDelay = std::chrono::milliseconds(25);
constexpr unsigned kNumEarlyLooks = 8;

CallSummary copy_of(const GlooRequest& request) { return read_summaries(write_summary(request.call, request.sequence, true))[0]; }

std::string calls_key(int64_t group, int rank) { return str("calls/", group, "/", rank); }

// Of two lists in the order of their sequences, those that are in both.
std::vector<std::pair<const CallSummary*, const CallSummary*>> same_sequence(const std::vector<CallSummary>& ours,
                                                                             const std::vector<CallSummary>& theirs) {
  std::vector<std::pair<const CallSummary*, const CallSummary*>> pairs;
  for (const CallSummary& own : ours)
    for (const CallSummary& other : theirs)
      if (own.sequence == other.sequence) pairs.emplace_back(&own, &other);
  return pairs;
}

bool is_message(Op op) { return op == Op::kSend || op == Op::kRecv; }

// Of a send (or of its recv) from one rank of a group to another.
std::string message_key(int64_t group, int from, int to, uint64_t sequence, bool send) {
  return str("message/", group, "/", from, "/", to, "/", sequence, "/", int(send));
}

}  // namespace

// On the board's thread, a few times a second at most; less and less often for the same call.
void GlooBackend::look() {
  const auto due = [](unsigned num_looks) { return num_looks >= 2 && (num_looks < kNumEarlyLooks || std::has_single_bit(num_looks)); };
  std::shared_ptr<GlooRequest> running;
  std::string recent;
  std::vector<std::pair<GlooRequest*, CallSummary>> messages;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    if (running_ != nullptr && !failed_ && due(++running_->num_looks)) {
      running = running_;
      recent = write_recent();
    }
    for (GlooRequest* message : messages_)
      if (due(++message->num_looks)) messages.emplace_back(message, copy_of(*message));
  }
  if (running != nullptr)
    if (const Comparison found = compare_calls(recent); !found.difference.empty()) fail_running(running.get(), found.difference);
  for (const auto& [message, mine] : messages)
    if (const Comparison found = compare_messages(mine); !found.difference.empty()) fail_message(message, mine.sequence, found.difference);
}

std::string GlooBackend::write_recent() const {
  std::string text;
  for (const auto& request : recent_) text += write_summary(request->call, request->sequence, request == running_);
  return text;
}

// All recent calls: a rank that had nothing to wait for in the one that contradicts may be in a later one by now.
GlooBackend::Comparison GlooBackend::compare_calls(const std::string& recent) {
  process_->board->write(calls_key(key_, ranks()[rank()]), recent);
  const std::vector<CallSummary> mine = read_summaries(recent);
  Comparison result;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const std::vector<CallSummary> theirs = read_summaries(process_->board->read(calls_key(key_, ranks()[r])));
    result.all_told = result.all_told && !theirs.empty() && theirs.back().sequence >= mine.back().sequence;
    for (const auto& [own, other] : same_sequence(mine, theirs)) {
      const std::string difference = r < rank() ? first_difference({&other->call, &own->call}, {r, rank()}, ranks(), false)
                                                : first_difference({&own->call, &other->call}, {rank(), r}, ranks(), false);
      if (difference.empty()) continue;
      result.difference = str(operation_text(own->call.op, own->sequence), ": ", difference, " (", describe_ranks(ranks()), ")");
      return result;
    }
  }
  return result;
}

GlooBackend::Comparison GlooBackend::compare_messages(const CallSummary& mine) {
  const bool sends = mine.call.op == Op::kSend;
  const int from = sends ? rank() : mine.call.root, to = sends ? mine.call.root : rank();
  process_->board->write(message_key(key_, from, to, mine.sequence, sends), write_summary(mine.call, mine.sequence, true));
  const std::vector<CallSummary> others = read_summaries(process_->board->read(message_key(key_, from, to, mine.sequence, !sends)));
  if (others.empty()) return {"", false};
  const Call &sent = sends ? mine.call : others[0].call, &received = sends ? others[0].call : mine.call;
  if (sent.dtype == received.dtype && sent.in[0].numel == received.out[0].numel) return {};
  return {str(operation_text(mine.call.op, mine.sequence), ": sent ", sent.describe(), " from rank ", ranks()[from], ", received ",
              received.describe(), " at rank ", ranks()[to])};
}

// The other ranks of a call that timed out may be about to say what they did, as they time out too.
std::string GlooBackend::compare(const GlooRequest& request, bool wait_for_others) {
  std::unique_lock lock(mutex_);
  const CallSummary mine = copy_of(request);
  const std::string recent = write_recent();
  lock.unlock();
  const Clock::time_point last = Clock::now() + (wait_for_others ? kBlameDelay : std::chrono::milliseconds(0));
  while (true) {
    const Comparison found = is_message(mine.call.op) ? compare_messages(mine) : compare_calls(recent);
    if (!found.difference.empty() || found.all_told || Clock::now() >= last) return found.difference;
    std::this_thread::sleep_for(kRetryDelay);
  }
}

void GlooBackend::fail_running(const GlooRequest* request, const std::string& mismatch) {
  const std::lock_guard lock(mutex_);
  if (running_.get() != request) return;
  mismatch_ = mismatch;
  for (const Flight& flight : flights_) flight.transfer->abort();
}

void GlooBackend::fail_message(GlooRequest* request, uint64_t sequence, const std::string& mismatch) {
  const std::lock_guard lock(mutex_);
  if (std::find(messages_.begin(), messages_.end(), request) == messages_.end() || request->sequence != sequence) return;
  request->mismatch = mismatch;
  request->transfer->abort();
}

// Debug mode: everybody tells everybody, and all pairs are compared, so that all ranks say the same.
void GlooBackend::check_calls(GlooRequest& request) {
  signature_ = signature_of(Call(), key_, request.sequence);
  std::string mine = write_summary(request.call, request.sequence, true);
  int64_t length = int64_t(mine.size());
  std::vector<int64_t> lengths(size());
  Blocks in;
  for (int64_t& other : lengths) in.push_back({reinterpret_cast<char*>(&other), int64_t(sizeof other)});
  exchange(everybody({reinterpret_cast<char*>(&length), int64_t(sizeof length)}), in, 1);
  std::vector<std::string> texts(size());
  for (int r = 0; r < size(); ++r) {
    texts[r].resize(size_t(lengths[r]));
    in[r] = {texts[r].data(), lengths[r]};
  }
  exchange(everybody({mine.data(), length}), in, 1);
  std::vector<CallSummary> calls;
  for (const std::string& text : texts) calls.push_back(read_summaries(text)[0]);
  for (int a = 0; a < size(); ++a) {
    for (int b = a + 1; b < size(); ++b) {
      const std::string difference = first_difference({&calls[a].call, &calls[b].call}, {a, b}, ranks(), true);
      if (!difference.empty())
        throw CollectiveError(str(operation_text(request.call.op, request.sequence), ": ", difference, " (", describe_ranks(ranks()), ")"));
    }
  }
}

// Turns an error of the transport into one that names the collective and the ranks.
std::exception_ptr GlooBackend::explain(const GlooRequest& request, const std::exception& cause, int peer) {
  const std::string what = cause.what();
  const bool timed_out = what.find("imed out") != std::string::npos || what.find("imeout") != std::string::npos;
  {
    const std::lock_guard lock(mutex_);
    const std::string& mismatch = is_message(request.call.op) ? request.mismatch : mismatch_;
    if (!mismatch.empty()) return std::make_exception_ptr(CollectiveError(mismatch));
    if (stop_) return left_error();
  }
  // A rank that only follows another's failure gives way, so that the cause is seen first (and the launcher may end this process).
  if (!timed_out) std::this_thread::sleep_for(kBlameDelay);
  std::string text = compare(request, timed_out);
  if (text.empty()) {
    const std::string where =
        str(operation_text(request.call.op, request.sequence), " (", describe_ranks(ranks()), "), ", request.call.describe());
    text = timed_out ? str("time-out after ", describe(process_->timeout), " in ", where, "\n  ", blame_late(request))
                     : str(where, ": ", blame_lost(request, peer, what.substr(0, what.find('\n'))));
  }
  return std::make_exception_ptr(CollectiveError(text));
}

std::string GlooBackend::blame_lost(const GlooRequest& request, int peer, const std::string& cause) {
  for (int r = 0; r < size(); ++r) {
    if (r == rank() || (is_message(request.call.op) && r != request.call.root)) continue;
    const RankReport report = process_->board->report_of(key_, ranks()[r]);
    const bool missed = is_message(request.call.op) || report.sequence < request.sequence;
    if (report.left && missed) return str("rank ", ranks()[r], " has ended; the last that it did was ", report.describe());
  }
  return str("lost rank ", ranks()[peer], ": ", cause);
}

std::string GlooBackend::blame_late(const GlooRequest& request) {
  const auto report_of = [&](int r) { return process_->board->report_of(key_, ranks()[r]); };
  if (is_message(request.call.op)) {
    const int peer = request.call.root;
    return str("missing: ", ranks()[peer], " last did ", report_of(peer).describe());
  }
  std::string arrived, missing;
  for (int r = 0; r < size(); ++r) {
    const RankReport report = r == rank() ? RankReport{.sequence = request.sequence} : report_of(r);
    if (report.sequence >= request.sequence)
      arrived += str(arrived.empty() ? "" : ", ", ranks()[r]);
    else
      missing += str(missing.empty() ? "" : "; ", ranks()[r], " last did ", report.describe());
  }
  return str("arrived: ", arrived, " (", name_of(request.call.op), " #", request.sequence, ")",
             missing.empty() ? "" : "; missing: ", missing);
}

}  // namespace hyper_parallel::detail
