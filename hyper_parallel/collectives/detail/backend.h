// SPDX-License-Identifier: Apache-2.0
// What a transport implements. One Backend object is one rank's end of one group; it is used by one thread at a time.
//
//   Call& call = backend.begin();      // cleared; belongs to the rank's next collective
//   call.op = ...; call.add_output(...);
//   return backend.post(call);         // never blocks for other ranks
//
// ProcessGroup has checked the tensors, and never calls begin/post for groups of size 1.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/detail/call.h"

namespace hyper_parallel {

class PendingRequest {
 public:
  // Returns when the collective is complete, or throws CollectiveError. Ends the request: it is neither waited for nor touched again.
  virtual void wait() = 0;
  virtual bool done() = 0;  // may work on the collective, so that polling makes progress
  // The owner is unwinding: other ranks may never come. Ends the request without throwing or long waiting.
  virtual void abandon() noexcept = 0;

 protected:
  ~PendingRequest() = default;
};

class Backend {
 public:
  Backend(std::vector<int> ranks, int rank, std::string name) : ranks_(std::move(ranks)), rank_(rank), name_(std::move(name)) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  int rank() const { return rank_; }
  int size() const { return int(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }  // world ranks
  const std::string& name() const { return name_; }

  virtual const char* kind() const = 0;
  virtual bool checks_calls() const { return false; }
  virtual detail::Call& begin() = 0;
  virtual Work post(detail::Call& call) = 0;
  // Sub-groups: every rank of this group proposes a key; all use the largest one, which is then new for every pair of members.
  virtual int64_t propose_key() = 0;
  virtual void use_key(int64_t key) = 0;
  // `members`: world ranks in group order, this rank among them at `rank`.
  virtual std::shared_ptr<Backend> make_subgroup(std::vector<int> members, int rank, const std::string& name, int64_t key) = 0;

 private:
  std::vector<int> ranks_;
  int rank_;
  std::string name_;
};

namespace detail {

// The group of one rank: never asked to move anything.
class SoloBackend final : public Backend {
 public:
  SoloBackend(int world_rank, std::string name, const char* kind) : Backend({world_rank}, 0, std::move(name)), kind_(kind) {}
  const char* kind() const override { return kind_; }
  Call& begin() override;
  Work post(Call& call) override;
  int64_t propose_key() override { return 0; }
  void use_key(int64_t) override {}
  std::shared_ptr<Backend> make_subgroup(std::vector<int> members, int rank, const std::string& name, int64_t key) override;

 private:
  const char* kind_;
};

}  // namespace detail
}  // namespace hyper_parallel
