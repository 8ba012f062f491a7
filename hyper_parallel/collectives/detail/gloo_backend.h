// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that are processes. All collectives are made of messages between pairs and of the same kernels as the thread backend, so
// sums run in rank order for every dtype, operation and size, and give the bits that ranks as threads give. (gloo's own algorithms change
// their order with the size, lack dtypes, operations and uneven sizes, and its reduce_scatter is slower.)
//
// Each group has one worker thread that does its collectives in the order of posting. Sends and recvs go out at once.
#pragma once
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "hyper_parallel/collectives/detail/backend.h"
#include "hyper_parallel/collectives/detail/gloo_transport.h"
#include "hyper_parallel/collectives/detail/status_board.h"

namespace hyper_parallel::detail {

// What all groups of one process share.
struct GlooProcess {
  std::shared_ptr<Store> store;
  std::shared_ptr<GlooTransport> transport;
  std::unique_ptr<StatusBoard> board;
  std::chrono::milliseconds timeout;
  bool check = false;    // compare fingerprints before each collective
  int64_t last_key = 0;  // of all groups so far: makes tags that differ
};

class GlooBackend;

struct GlooRequest final : PendingRequest {
  void wait() override;
  bool done() override;
  void abandon() noexcept override;

  Call call;
  GlooBackend* backend = nullptr;
  uint64_t sequence = 0;
  std::unique_ptr<Transfer> transfer;  // of a send or recv
  std::exception_ptr error;            // this and below: under the backend's mutex
  bool complete = false;
  std::shared_ptr<GlooRequest> self;  // while posted and not waited for
};

class GlooBackend final : public Backend {
 public:
  GlooBackend(std::shared_ptr<GlooProcess> process, std::vector<int> ranks, int rank, std::string name, int64_t key);
  ~GlooBackend() override;

  const char* kind() const override { return "gloo"; }
  Call& begin() override;
  Work post(Call& call) override;
  int64_t propose_key() override { return process_->last_key + 1; }
  void use_key(int64_t key) override { process_->last_key = key; }
  std::shared_ptr<Backend> make_subgroup(std::vector<int> members, int rank, const std::string& name, int64_t key) override;

 private:
  friend struct GlooRequest;
  using Blocks = std::vector<Block>;  // by group rank

  void work();
  void run(GlooRequest& request);
  void run_all_reduce(Call& call);
  void run_reduce_scatter(Call& call);
  void run_reduce(Call& call);
  void run_moves(Call& call);
  void check_fingerprints(GlooRequest& request);
  // Sends sends[r] to rank r and receives recvs[r] from it; empty blocks are skipped on both sides. The own block is copied.
  void exchange(const Blocks& sends, const Blocks& recvs, int64_t element_bytes);
  void combine(const Call& call, const Blocks& inputs, const Block& output);
  Blocks everybody(Block block) const { return Blocks(size(), block); }
  Blocks stage(const Blocks& like, int64_t element_bytes);
  void post_message(GlooRequest& request);
  void wait_for_message(GlooRequest& request);
  std::exception_ptr explain(const GlooRequest& request, const std::exception& cause, int peer);
  void shut_down() noexcept;
  std::string operation_text(const GlooRequest& request) const;

  std::shared_ptr<GlooProcess> process_;
  const int64_t key_;
  std::shared_ptr<LastCall> last_call_;
  std::shared_ptr<GlooRequest> next_;  // begun, not posted
  uint64_t sequence_ = 0;
  std::map<std::pair<int, bool>, int> num_messages_;  // (peer, is send)
  int num_exchanges_ = 0;                             // worker only, like the next two
  int blamed_peer_ = -1;
  std::unique_ptr<char[]> staging_;  // not initialised
  int64_t staging_bytes_ = 0;

  std::mutex mutex_;  // everything below, and the requests' results
  std::condition_variable changed_;
  std::deque<std::shared_ptr<GlooRequest>> queue_;
  std::vector<Transfer*> in_flight_;
  std::exception_ptr failed_;  // of the first request that failed: all later ones fail alike
  bool stop_ = false;
  std::thread worker_;
};

}  // namespace hyper_parallel::detail
