// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/gloo_backend.h"

#include <pthread.h>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::detail {
namespace {

constexpr size_t kNumRecent = 4;

}  // namespace

void GlooRequest::wait() {
  const std::shared_ptr<GlooRequest> keep = std::exchange(self, nullptr);
  if (transfer != nullptr) {
    backend->wait_for_message(*this);
  } else {
    backend->await(*this);
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
  if (transfer != nullptr) backend->forget_message(*this);
}

GlooBackend::GlooBackend(std::shared_ptr<GlooProcess> process, std::vector<int> ranks, int rank, std::string name, int64_t key)
    : Backend(std::move(ranks), rank, std::move(name)), process_(std::move(process)), key_(key) {
  last_call_ = process_->board->add_group(key, [this] { look(); });
  worker_ = std::thread([this] { work(); });
}

GlooBackend::~GlooBackend() {
  shut_down();
  worker_.join();
  process_->board->remove_group(key_);
}

// Ends what is under way; everybody who waits, here or on other ranks, gets an error. Without anything under way: an orderly end.
void GlooBackend::shut_down() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (const Flight& flight : flights_) flight.transfer->abort();
  }
  posted_.notify_one();
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
  last_call_->step.store(progress_note.step);
  last_call_->place.store(progress_note.place);
  last_call_->sequence.store(sequence_);
  {
    const std::lock_guard lock(mutex_);
    if (stop_) {
      request->error = left_error();
      request->complete = true;
    } else {
      queue_.push_back(request);
    }
  }
  posted_.notify_one();
  return Work(request.get());
}

void GlooBackend::work() {
  pthread_setname_np(pthread_self(), "hp_gloo");
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this] { return stop_ || (running_ == nullptr && !queue_.empty()); });
    if (stop_) break;
    run_next(lock);
  }
  for (const auto& request : queue_) request->error = left_error(), request->complete = true;
  completed_.notify_all();
}

void GlooBackend::run_next(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<GlooRequest> request = std::move(queue_.front());
  queue_.pop_front();
  std::exception_ptr error = failed_;
  if (!error) {
    running_ = request;
    recent_.push_back(request);
    if (recent_.size() > kNumRecent) recent_.pop_front();
    lock.unlock();
    try {
      run(*request);
    } catch (const PeerError& cause) {
      error = explain(*request, cause, cause.peer);
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    lock.lock();
    running_ = nullptr;
    flights_.clear();
  }
  if (error) failed_ = error;
  request->error = error;
  request->complete = true;
  completed_.notify_all();
  if (!queue_.empty()) posted_.notify_one();
}

// Who waits does the work, if the worker has not begun yet: that saves two changes of thread, most of the time of a small collective.
void GlooBackend::await(GlooRequest& request) {
  std::unique_lock lock(mutex_);
  while (!request.complete) {
    if (!stop_ && running_ == nullptr && !queue_.empty())
      run_next(lock);
    else
      completed_.wait(lock);
  }
}

std::exception_ptr GlooBackend::left_error() const {
  return std::make_exception_ptr(CollectiveError(str("group \"", name(), "\" was left with collectives under way")));
}

std::string GlooBackend::operation_text(Op op, uint64_t sequence) const {
  return str(name_of(op), " #", sequence, " of group \"", name(), "\"");
}

std::shared_ptr<Backend> GlooBackend::make_subgroup(std::vector<int> members, int rank, const std::string& name, int64_t key) {
  if (members.size() == 1) return std::make_shared<SoloBackend>(members[0], name, kind());
  return std::make_shared<GlooBackend>(process_, std::move(members), rank, name, key);
}

void GlooBackend::post_message(GlooRequest& request) {
  Call& call = request.call;
  const bool sends = call.op == Op::kSend;
  request.sequence = ++num_messages_[{call.root, sends}];
  const Block block = sends ? call.in[0] : call.out[0];
  const int peer = ranks()[call.root];
  const int64_t num_bytes = block.numel * call.element_bytes();
  const uint64_t agreed =
      mix(mix(mix(uint64_t(key_), request.sequence), uint64_t(call.dtype) << 8 | uint64_t(Op::kSend)), uint64_t(num_bytes));
  try {
    request.transfer = sends ? process_->transport->send(block.data, num_bytes, peer, tag_of(agreed))
                             : process_->transport->recv(block.data, num_bytes, peer, tag_of(agreed));
  } catch (const std::exception& cause) {
    request.self = nullptr;
    std::rethrow_exception(explain(request, PeerError(call.root, cause), call.root));
  }
  const std::lock_guard lock(mutex_);
  messages_.push_back(&request);
}

void GlooBackend::wait_for_message(GlooRequest& request) {
  try {
    request.transfer->wait(process_->timeout);
    forget_message(request);
  } catch (const std::exception& cause) {
    forget_message(request);
    std::rethrow_exception(explain(request, cause, request.call.root));
  }
}

void GlooBackend::forget_message(GlooRequest& request) {
  const std::lock_guard lock(mutex_);
  std::erase(messages_, &request);
}

}  // namespace hyper_parallel::detail
