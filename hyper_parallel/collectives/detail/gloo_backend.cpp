// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/gloo_backend.h"

#include <pthread.h>

#include <cstring>
#include <thread>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/detail/thread_group.h"

namespace hyper_parallel::detail {
namespace {

constexpr int64_t kGatherBytes = int64_t(32) << 10;  // all_reduce: up to this, everybody gets everything in one round
constexpr int kMaxGroups = 1 << 12, kMaxCount = 1 << 17;
constexpr auto kBlameDelay = std::chrono::milliseconds(500);

// 31 bits: group, kind, count. Counts may go round: far fewer messages than that are under way.
int tag_of(int64_t group, bool message, int count) { return int(group % kMaxGroups) << 18 | int(message) << 17 | count % kMaxCount; }

struct PeerError : std::runtime_error {
  PeerError(int rank, const std::exception& cause) : std::runtime_error(cause.what()), peer(rank) {}
  int peer;  // rank in the group
};

}  // namespace

void GlooRequest::wait() {
  const std::shared_ptr<GlooRequest> keep = std::exchange(self, nullptr);
  if (transfer != nullptr) {
    backend->wait_for_message(*this);
  } else {
    std::unique_lock lock(backend->mutex_);
    backend->changed_.wait(lock, [this] { return complete; });
  }
  if (error) std::rethrow_exception(error);
  call.finish();
}

bool GlooRequest::done() {
  if (transfer != nullptr) return false;  // gloo can't tell: wait() can
  const std::lock_guard lock(backend->mutex_);
  return complete;
}

void GlooRequest::abandon() noexcept {
  const std::shared_ptr<GlooRequest> keep = std::exchange(self, nullptr);
  if (transfer != nullptr || !done()) backend->shut_down();
}

GlooBackend::GlooBackend(std::shared_ptr<GlooProcess> process, std::vector<int> ranks, int rank, std::string name, int64_t key)
    : Backend(std::move(ranks), rank, std::move(name)),
      process_(std::move(process)),
      key_(key),
      last_call_(process_->board->add_group(key)) {
  worker_ = std::thread([this] { work(); });
}

GlooBackend::~GlooBackend() {
  shut_down();
  worker_.join();
}

// Ends what is under way; everybody who waits, here or on other ranks, gets an error. Without anything under way: an orderly end.
void GlooBackend::shut_down() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (Transfer* transfer : in_flight_) transfer->abort();
  }
  changed_.notify_all();
}

Call& GlooBackend::begin() {
  if (next_ == nullptr) next_ = std::make_shared<GlooRequest>();
  next_->call.clear();
  next_->backend = this;
  return next_->call;
}

Work GlooBackend::post(Call& call) {
  const std::shared_ptr<GlooRequest> request = std::move(next_);
  request->self = request;
  if (call.op == Op::kSend || call.op == Op::kRecv) {
    post_message(*request);
    return Work(request.get());
  }
  request->sequence = ++sequence_;
  last_call_->op.store(call.op);
  last_call_->sequence.store(sequence_);
  {
    const std::lock_guard lock(mutex_);
    if (stop_) {
      request->error = std::make_exception_ptr(CollectiveError(str("group \"", name(), "\" was left with collectives under way")));
      request->complete = true;
    } else {
      queue_.push_back(request);
    }
  }
  changed_.notify_all();
  return Work(request.get());
}

void GlooBackend::work() {
  pthread_setname_np(pthread_self(), "hp_gloo");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) break;
    const std::shared_ptr<GlooRequest> request = std::move(queue_.front());
    queue_.pop_front();
    std::exception_ptr error = failed_;
    if (!error) {
      lock.unlock();
      try {
        run(*request);
      } catch (const PeerError& cause) {
        error = explain(*request, cause, cause.peer);
      } catch (const std::exception&) {
        error = std::current_exception();
      }
      lock.lock();
    }
    if (error) failed_ = error;
    request->error = error;
    request->complete = true;
    changed_.notify_all();
  }
  const auto ended = std::make_exception_ptr(CollectiveError(str("group \"", name(), "\" was left with collectives under way")));
  for (const auto& request : queue_) request->error = ended, request->complete = true;
  changed_.notify_all();
}

std::string GlooBackend::operation_text(const GlooRequest& request) const {
  return str(name_of(request.call.op), " #", request.sequence, " of group \"", name(), "\"");
}

void GlooBackend::run(GlooRequest& request) {
  Call& call = request.call;
  if (process_->check) check_fingerprints(request);
  switch (call.op) {
    case Op::kAllReduce:
      return run_all_reduce(call);
    case Op::kReduceScatter:
      return run_reduce_scatter(call);
    case Op::kReduce:
      return run_reduce(call);
    default:
      return run_moves(call);
  }
}

void GlooBackend::exchange(const Blocks& sends, const Blocks& recvs, int64_t element_bytes) {
  const int tag = tag_of(key_, false, num_exchanges_++);
  const auto start = Clock::now();
  std::vector<std::pair<std::unique_ptr<Transfer>, int>> transfers;
  const auto add = [&](std::unique_ptr<Transfer> transfer, int peer) {
    const std::lock_guard lock(mutex_);
    if (stop_) throw CollectiveError(str("group \"", name(), "\" was left with collectives under way"));
    in_flight_.push_back(transfer.get());
    transfers.emplace_back(std::move(transfer), peer);
  };
  struct Landed {
    GlooBackend& backend;
    ~Landed() {
      const std::lock_guard lock(backend.mutex_);
      backend.in_flight_.clear();
    }
  } landed{*this};

  int peer = rank();
  try {
    for (int i = 1; i < size(); ++i) {
      peer = (rank() - i + size()) % size();
      if (recvs[peer].numel > 0)
        add(process_->transport->recv(recvs[peer].data, recvs[peer].numel * element_bytes, ranks()[peer], tag), peer);
    }
    for (int i = 1; i < size(); ++i) {
      peer = (rank() + i) % size();
      if (sends[peer].numel > 0)
        add(process_->transport->send(sends[peer].data, sends[peer].numel * element_bytes, ranks()[peer], tag), peer);
    }
    const Block &mine = sends[rank()], &target = recvs[rank()];
    if (mine.numel > 0 && target.numel == mine.numel && mine.data != target.data)
      std::memcpy(target.data, mine.data, mine.numel * element_bytes);
    for (auto& [transfer, other] : transfers) {
      peer = other;
      const auto left = process_->timeout - std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
      transfer->wait(std::max(left, std::chrono::milliseconds(1)));
    }
  } catch (const CollectiveError&) {
    throw;
  } catch (const std::exception& cause) {
    throw PeerError(peer, cause);
  }
}

GlooBackend::Blocks GlooBackend::stage(const Blocks& like, int64_t element_bytes) {
  int64_t total = 0;
  for (const Block& block : like) total += block.numel * element_bytes + 64;
  if (staging_bytes_ < total + 64) {
    staging_.reset();
    staging_bytes_ = total + 64;
    staging_.reset(new char[staging_bytes_]);
  }
  char* at = staging_.get() + (64 - reinterpret_cast<uintptr_t>(staging_.get()) % 64);
  Blocks blocks;
  for (const Block& block : like) {
    blocks.push_back({at, block.numel});
    at += (block.numel * element_bytes + 63) / 64 * 64;
  }
  return blocks;
}

void GlooBackend::combine(const Call& call, const Blocks& inputs, const Block& output) {
  std::vector<const void*> from;
  for (const Block& input : inputs) from.push_back(input.data);
  void* to = output.data;
  const int divisor = call.reduce == ReduceOp::kAvg ? size() : 1;
  kernel_of(call.dtype, call.reduce)({from.data(), int(from.size()), &to, 1, output.numel, divisor, false});
}

void GlooBackend::run_all_reduce(Call& call) {
  const int64_t bytes = call.element_bytes();
  for (const Block& block : call.out) {
    if (block.numel * bytes <= kGatherBytes) {
      const Blocks all = stage(everybody(block), bytes);
      exchange(everybody(block), all, bytes);
      combine(call, all, block);
      continue;
    }
    Blocks parts;  // of the tensor, one for each rank
    for (int64_t r = 0, begin = 0; r < size(); ++r) {
      const int64_t end = block.numel * (r + 1) / size();
      parts.push_back({block.data + begin * bytes, end - begin});
      begin = end;
    }
    const Block mine = parts[rank()];
    const Blocks others = stage(everybody(mine), bytes);
    exchange(parts, others, bytes);
    combine(call, others, mine);
    exchange(everybody(mine), parts, bytes);
  }
}

void GlooBackend::run_reduce_scatter(Call& call) {
  for (int t = 0; t < int(call.out.size()); ++t) {
    const Blocks sends(call.in.begin() + t * size(), call.in.begin() + (t + 1) * size());
    const Blocks received = stage(everybody(call.out[t]), call.element_bytes());
    exchange(sends, received, call.element_bytes());
    combine(call, received, call.out[t]);
  }
}

void GlooBackend::run_reduce(Call& call) {
  const Block block = call.out[0];
  Blocks sends(size(), Block{nullptr, 0}), received = sends;
  sends[call.root] = block;
  if (rank() == call.root) received = stage(everybody(block), call.element_bytes());
  exchange(sends, received, call.element_bytes());
  if (rank() == call.root) combine(call, received, block);
}

void GlooBackend::run_moves(Call& call) {
  const Blocks none(size(), Block{nullptr, 0});
  Blocks sends = none, recvs = none;
  static char barrier_send, barrier_recv;
  switch (call.op) {
    case Op::kAllGather:
      for (int t = 0; t < int(call.in.size()); ++t) {
        recvs.assign(call.out.begin() + t * size(), call.out.begin() + (t + 1) * size());
        exchange(everybody(call.in[t]), recvs, call.element_bytes());
      }
      return;
    case Op::kAllToAll:
      sends.assign(call.in.begin(), call.in.end());
      recvs.assign(call.out.begin(), call.out.end());
      break;
    case Op::kBroadcast:
      if (rank() == call.root)
        sends = everybody(call.out[0]);
      else
        recvs[call.root] = call.out[0];
      break;
    case Op::kGather:
      sends[call.root] = call.in[0];
      if (rank() == call.root) recvs.assign(call.out.begin(), call.out.end());
      break;
    case Op::kScatter:
      if (rank() == call.root) sends.assign(call.in.begin(), call.in.end());
      recvs[call.root] = call.out[0];
      break;
    default:
      sends = everybody({&barrier_send, 1});
      recvs = everybody({&barrier_recv, 1});
      sends[rank()].numel = 0;
  }
  exchange(sends, recvs, call.element_bytes());
}

std::shared_ptr<Backend> GlooBackend::make_subgroup(std::vector<int> members, int rank, const std::string& name, int64_t key) {
  if (members.size() == 1) return std::make_shared<SoloBackend>(members[0], name, kind());
  return std::make_shared<GlooBackend>(process_, std::move(members), rank, name, key);
}

void GlooBackend::post_message(GlooRequest& request) {
  Call& call = request.call;
  const bool sends = call.op == Op::kSend;
  const int count = num_messages_[{call.root, sends}]++;
  request.sequence = uint64_t(count) + 1;
  const int peer = ranks()[call.root], tag = tag_of(key_, true, count);
  const Block block = sends ? call.in[0] : call.out[0];
  try {
    request.transfer = sends ? process_->transport->send(block.data, block.numel * call.element_bytes(), peer, tag)
                             : process_->transport->recv(block.data, block.numel * call.element_bytes(), peer, tag);
  } catch (const std::exception& cause) {
    request.self = nullptr;
    std::rethrow_exception(explain(request, PeerError(call.root, cause), call.root));
  }
}

void GlooBackend::wait_for_message(GlooRequest& request) {
  try {
    request.transfer->wait(process_->timeout);
  } catch (const std::exception& cause) {
    std::rethrow_exception(explain(request, cause, request.call.root));
  }
}

// Turns an error of the transport into one that names the collective and the ranks.
std::exception_ptr GlooBackend::explain(const GlooRequest& request, const std::exception& cause, int peer) {
  const Call& call = request.call;
  const std::string what = cause.what();
  const std::string where = str(operation_text(request), " (", describe_ranks(ranks()), "), ", call.describe());
  const bool timed_out = what.find("imed out") != std::string::npos || what.find("imeout") != std::string::npos;
  if (!timed_out) {
    // A rank that only follows another's failure gives way, so that the cause is seen first (and the launcher may end this process).
    std::this_thread::sleep_for(kBlameDelay);
    return std::make_exception_ptr(CollectiveError(str(where, ": lost rank ", ranks()[peer], ": ", what.substr(0, what.find('\n')))));
  }
  std::string text = str("time-out after ", describe(process_->timeout), " in ", where);
  if (call.op == Op::kSend || call.op == Op::kRecv) {
    text += str("\n  missing: ", ranks()[peer]);
  } else {
    std::string arrived, missing;
    for (int r = 0; r < size(); ++r) {
      const auto [sequence, op] = r == rank() ? std::pair(request.sequence, call.op) : process_->board->last_call(key_, ranks()[r]);
      if (sequence >= request.sequence)
        arrived += str(arrived.empty() ? "" : ", ", ranks()[r]);
      else
        missing += str(missing.empty() ? "" : "; ", ranks()[r], " last did ", name_of(op), sequence == 0 ? "" : str(" #", sequence));
    }
    text +=
        str("\n  arrived: ", arrived, " (", name_of(call.op), " #", request.sequence, ")", missing.empty() ? "" : "; missing: ", missing);
  }
  return std::make_exception_ptr(CollectiveError(text));
}

}  // namespace hyper_parallel::detail
