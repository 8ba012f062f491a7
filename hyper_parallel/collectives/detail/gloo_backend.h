// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that are processes. All collectives are made of messages between pairs and of the same kernels as the thread backend, so
// sums run in rank order for every dtype, operation and size, and give the bits that ranks as threads give. (gloo's own algorithms change
// their order with the size, lack dtypes, operations and uneven sizes, and its reduce_scatter is slower.)
//
// Each group has one worker thread that does its collectives in the order of posting, unless somebody waits before it has begun: then that
// thread does. Sends and recvs go out at once.
//
// gloo ends the process over a message that is larger than expected and says nothing about one that is smaller. So a message's tag is a
// hash of all that both sides must agree on, its size first: messages that don't agree never meet. Both ranks then wait; the status board's
// thread notices a call that takes long, exchanges what each rank is doing through the store, and fails the call with what contradicts.
#pragma once
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "hyper_parallel/collectives/detail/backend.h"
#include "hyper_parallel/collectives/detail/call_summary.h"
#include "hyper_parallel/collectives/detail/gloo_transport.h"
#include "hyper_parallel/collectives/detail/status_board.h"
#include "hyper_parallel/collectives/detail/wait_word.h"

namespace hyper_parallel::detail {

// What all groups of one process share.
struct GlooProcess {
  std::shared_ptr<Store> store;
  std::shared_ptr<GlooTransport> transport;
  std::unique_ptr<StatusBoard> board;
  std::chrono::milliseconds timeout;
  bool check = false;    // compare all ranks' calls before each collective
  int64_t last_key = 0;  // of all groups so far
};

class GlooBackend;

struct GlooRequest final : PendingRequest {
  void wait() override;
  bool done() override;
  void abandon() noexcept override;

  Call call;
  GlooBackend* backend = nullptr;
  uint64_t sequence = 0;               // of sends and recvs: among those to or from this peer
  std::unique_ptr<Transfer> transfer;  // of a send or recv
  std::exception_ptr error;            // this and below: under the backend's mutex
  bool complete = false;
  unsigned num_looks = 0;             // of the board while it was under way
  std::string mismatch;               // why its transfer was aborted
  std::shared_ptr<GlooRequest> self;  // while posted and not waited for
};

// Bytes to or from a rank. None: nothing moves, and no message is sent.
struct Parcel {
  char* data = nullptr;
  int64_t num_bytes = 0;
  int64_t whole_bytes = 0;  // of the block that it is a chunk of
};

class GlooBackend final : public Backend {
 public:
  GlooBackend(std::shared_ptr<GlooProcess> process, std::vector<int> ranks, int rank, std::string name, int64_t key);
  ~GlooBackend() override;

  const char* kind() const override { return "gloo"; }
  bool checks_calls() const override { return process_->check; }
  Call& begin() override;
  Work post(Call& call) override;
  int64_t propose_key() override { return process_->last_key + 1; }
  void use_key(int64_t key) override { process_->last_key = key; }
  std::shared_ptr<Backend> make_subgroup(std::vector<int> members, int rank, const std::string& name, int64_t key) override;

 private:
  friend struct GlooRequest;
  using Blocks = std::vector<Block>;    // by group rank
  using Parcels = std::vector<Parcel>;  // by group rank
  struct Flight {
    std::unique_ptr<Transfer> transfer;
    int peer;
    uint32_t round;
    Clock::time_point start;
  };

  // gloo_backend.cpp: requests and the worker.
  void work();
  void run_next(std::unique_lock<std::mutex>& lock);
  void await(GlooRequest& request);
  void shut_down() noexcept;
  void post_message(GlooRequest& request);
  void wait_for_message(GlooRequest& request);
  void forget_message(GlooRequest& request);
  std::exception_ptr left_error() const;
  std::string operation_text(Op op, uint64_t sequence) const;

  // gloo_collectives.cpp, on the thread that runs the request.
  void run(GlooRequest& request);
  void run_all_reduce(Call& call);
  void run_reduce_scatter(Call& call);
  void run_reduce(Call& call);
  void run_moves(Call& call);
  // Starts sending sends[r] to rank r and receiving recvs[r] from it, and returns the round's number for finish(), which waits.
  uint32_t start(const Parcels& sends, const Parcels& recvs);
  void finish(uint32_t round);
  void exchange(const Blocks& sends, const Blocks& recvs, int64_t element_bytes);  // one round; the own block is copied
  // Combines what everybody sends to this rank, and this rank's own sends[rank()], into `output`: by chunks, which are combined while the
  // next ones travel and are still in the caches. then(chunk) follows each.
  template <class Then>
  void reduce_blocks(const Call& call, const Blocks& sends, const Block& output, Then&& then);
  Parcel chunk_of(const Block& block, int64_t chunk, int64_t element_bytes) const;
  Blocks everybody(Block block) const { return Blocks(size(), block); }
  char* staging(int64_t num_bytes);

  // gloo_watch.cpp: who is to blame.
  void look();
  void check_calls(GlooRequest& request);
  struct Comparison {
    std::string difference;  // "" or what contradicts what the others have told
    bool all_told = true;    // the other ranks, about this call
  };
  std::string write_recent() const;  // under the mutex
  // Tell the other ranks what this one does, and compare.
  Comparison compare_calls(const std::string& recent);
  Comparison compare_messages(const CallSummary& mine);
  std::string compare(const GlooRequest& request, bool wait_for_others);
  void fail_running(const GlooRequest* request, const std::string& mismatch);
  void fail_message(GlooRequest* request, uint64_t sequence, const std::string& mismatch);
  std::exception_ptr explain(const GlooRequest& request, const std::exception& cause, int peer);
  std::string blame_lost(const GlooRequest& request, int peer, const std::string& cause);
  std::string blame_late(const GlooRequest& request);

  std::shared_ptr<GlooProcess> process_;
  const int64_t key_;
  std::shared_ptr<LastCall> last_call_;
  std::shared_ptr<GlooRequest> next_;  // begun, not posted
  uint64_t sequence_ = 0;
  std::map<std::pair<int, bool>, uint64_t> num_messages_;  // (peer, is send)
  uint64_t signature_ = 0;                                 // of who runs, like the next three: what the tags of a call start from
  uint32_t num_rounds_ = 0;                                // of the call
  std::unique_ptr<char[]> staging_;                        // not initialised
  int64_t staging_bytes_ = 0;

  std::mutex mutex_;  // everything below, and the requests' results
  std::condition_variable posted_, completed_;
  std::deque<std::shared_ptr<GlooRequest>> queue_;
  std::shared_ptr<GlooRequest> running_;
  std::deque<std::shared_ptr<GlooRequest>> recent_;  // the last few that ran, the running one included: others may still be at them
  std::vector<GlooRequest*> messages_;               // sends and recvs that are not waited for yet
  std::vector<Flight> flights_;                      // changed by who runs only, who may read it without the mutex
  std::string mismatch_;                             // why the running call's transfers were aborted
  std::exception_ptr failed_;                        // of the first request that failed: all later ones fail alike
  bool stop_ = false;
  std::thread worker_;
};

// What went wrong with a message to or from `peer`, a rank in the group.
struct PeerError : std::runtime_error {
  PeerError(int rank, const std::exception& cause) : std::runtime_error(cause.what()), peer(rank) {}
  int peer;
};

// A tag from what both ends of a message know: equal on both, and different from those of other messages.
inline uint64_t mix(uint64_t hash, uint64_t value) {
  uint64_t x = (hash ^ value) + 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
inline int tag_of(uint64_t hash) { return int(hash >> 33); }  // gloo's tags have 31 bits
uint64_t signature_of(const Call& call, int64_t key, uint64_t sequence);

}  // namespace hyper_parallel::detail
