// SPDX-License-Identifier: Apache-2.0
// Groups of ranks and their eager collectives. Nothing here enters autograd; see differentiable.h for collectives with a backward.
//
//   ProcessGroup group = world.group();
//   group.all_reduce(gradient).wait();                       // in place
//   Work work = group.all_gather(full, shard);               // full: [size * shard.numel()], contiguous
//   ...; work.wait();                                        // only now may `full` be read and `shard` be changed
//
// Every rank of a group must make the same calls in the same order, from one thread at a time. A group of size 1 returns at once (copying
// input to output where they differ). Tensors may be zero-sized, and non-contiguous where the text below does not say "contiguous". Sums
// run in rank order on every backend (bf16 and f16 in f32, rounded once), so threads and processes give the same bits. Avg: floating-point
// only. bool: sum and max are "or", min and prod "and". A send may wait for its recv. Ranks as threads make progress only while they wait
// (or poll done()). Errors: CollectiveError on time-out, mismatch (debug mode) or when another rank failed.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hyper_parallel {

enum class ReduceOp : uint8_t { kSum, kAvg, kMin, kMax, kProd };
const char* name_of(ReduceOp op);

class Backend;         // detail/backend.h: what a transport implements
class PendingRequest;  // detail/backend.h

// A collective in flight. Must be waited for exactly once (the destructor waits, and swallows nothing: it logs an error that wait() would
// throw). A default-made Work is complete.
class Work {
 public:
  Work() = default;
  explicit Work(PendingRequest* request) : request_(request) {}  // for backends; the request ends itself
  Work(Work&& other) noexcept : request_(std::exchange(other.request_, nullptr)) {}
  Work& operator=(Work&& other) noexcept;
  ~Work();
  void wait();
  // Polling makes progress. gloo can't tell for send and recv: false until wait().
  bool done() const;

 private:
  PendingRequest* request_ = nullptr;
};

class ProcessGroup {
 public:
  ProcessGroup() = default;  // invalid until assigned
  explicit ProcessGroup(std::shared_ptr<Backend> backend);
  explicit operator bool() const { return backend_ != nullptr; }

  int rank() const;  // of this process or thread in the group
  int size() const;
  std::span<const int> ranks() const;  // world ranks, in group order
  const std::string& name() const;
  const char* backend_name() const;  // "thread", "gloo"
  bool checks_calls() const;         // debug mode: layers above check across ranks too

  // In place.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  // output holds size() blocks of input.numel() elements in group order. Same dtype; output contiguous.
  Work all_gather(const at::Tensor& output, const at::Tensor& input) const;
  // Uneven: rank r contributes a tensor of outputs[r]'s size. Each output contiguous; sizes may be zero.
  Work all_gather(std::span<const at::Tensor> outputs, const at::Tensor& input) const;
  // input holds size() blocks of output.numel() elements; both contiguous.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum) const;
  // Uneven: rank r receives the reduction of everybody's inputs[r].
  Work reduce_scatter(const at::Tensor& output, std::span<const at::Tensor> inputs, ReduceOp op = ReduceOp::kSum) const;
  // Splits count elements of dim 0 for each rank; empty = even. Contiguous.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> output_splits = {},
                  std::span<const int64_t> input_splits = {}) const;
  // One tensor to and from each rank; any sizes that agree pairwise.
  Work all_to_all(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs) const;
  // `root` and `peer` are ranks of this group.
  Work broadcast(const at::Tensor& tensor, int root) const;
  Work reduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum) const;         // in place on root, others unchanged
  Work gather(std::span<const at::Tensor> outputs, const at::Tensor& input, int root) const;   // outputs empty except on root
  Work scatter(const at::Tensor& output, std::span<const at::Tensor> inputs, int root) const;  // inputs empty except on root
  Work send(const at::Tensor& tensor, int peer) const;
  Work recv(const at::Tensor& tensor, int peer) const;
  void barrier() const;
  // Several tensors in one call, one wait.
  Work all_reduce(std::span<const at::Tensor> tensors, ReduceOp op = ReduceOp::kSum) const;
  Work all_gather_coalesced(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs) const;
  Work reduce_scatter_coalesced(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs,
                                ReduceOp op = ReduceOp::kSum) const;

  // Collective over this group: every rank calls it with the same list of ranks of this group and the same name. Ranks outside it get an
  // invalid ProcessGroup.
  ProcessGroup subgroup(std::span<const int> group_ranks, const std::string& name) const;
  // Collective: ranks of equal color form a group, ordered by (key, rank). color < 0: an invalid ProcessGroup.
  ProcessGroup split(int color, int key, const std::string& name) const;

  Backend& backend() const { return *backend_; }
  bool operator==(const ProcessGroup& other) const { return backend_ == other.backend_; }

 private:
  std::shared_ptr<Backend> backend_;
};

}  // namespace hyper_parallel
