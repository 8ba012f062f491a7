// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/fully_shard/detail/bucket.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <exception>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/progress_note.h"
#include "hyper_parallel/fully_shard/detail/storage.h"

namespace hyper_parallel::fsdp {

bool Bucket::takes(const Parameter& slot, const ParameterSharing& other) const {
  // Not `counted`, which differs between ranks: their buckets must correspond, or collectives would come in different orders.
  return trainable == slot.trainable && sharing.in_common == other.in_common && sharing.sum_gradients == other.sum_gradients;
}

void Bucket::append(Parameter& slot, std::string name, const ParameterSharing& other) {
  if (sharing.counted != other.counted)
    throw LayoutError(
        str("fully_shard: ", name, " and ", entries.front().name, " are held by the same ranks, but this rank counts only one in norms"));
  entries.push_back({.slot = &slot, .name = std::move(name), .offset = numel_, .numel = c10::multiply_integers(slot.local_sizes())});
  numel_ += entries.back().numel;
}

void Bucket::materialize(const MaterializeOptions& options) {
  const int64_t num_shards = groups_.shard.size();
  const int64_t shard_numel = (numel_ + num_shards - 1) / num_shards, shard_begin = groups_.shard.rank() * shard_numel;
  const bool sharded = groups_.sharded();
  flat_ = make_flat(shard_numel * num_shards, options.dtype);
  shard = sharded ? make_flat(shard_numel, options.dtype) : flat_;
  zero_range(shard, std::clamp<int64_t>(numel_ - shard_begin, 0, shard_numel), shard_numel);
  if (trainable) {
    gradient_ = make_flat(flat_.numel(), options.dtype);
    gradient_shard = sharded ? make_flat(shard_numel, options.dtype) : gradient_;
  }
  for (Entry& entry : entries) {
    const int64_t end = std::clamp<int64_t>(shard_begin + shard_numel - entry.offset, 0, entry.numel);
    entry.begin = std::clamp<int64_t>(shard_begin - entry.offset, 0, entry.numel);
    const int64_t at = std::clamp<int64_t>(entry.offset - shard_begin, 0, shard_numel);
    entry.piece = alias(shard, at, {end - entry.begin});
    fill_initial(entry.piece, *entry.slot, options.seed, entry.name, entry.begin);
    entry.leaf = alias(flat_, entry.offset, entry.slot->local_sizes());
    entry.leaf.set_requires_grad(trainable);
    entry.slot->tensor = sharded ? entry.piece : entry.leaf;
    if (!trainable) continue;
    entry.gradient = alias(gradient_, entry.offset, entry.slot->local_sizes());
    entry.gradient_piece = alias(gradient_shard, at, {end - entry.begin});
  }
  if (sharded) release(flat_);
  drop_gradient();
}

void Bucket::wait_for(Work& work) {
  try {
    work.wait();
  } catch (...) {
    broken_ = true;
    throw;
  }
}

void Bucket::give_up(Work& work) {
  try {
    // While unwinding only what is done is waited for: it does not block, and says whether it failed.
    if (std::uncaught_exceptions() == 0 || work.done()) {
      work.wait();
    } else {
      broken_ = true;
    }
  } catch (const std::exception&) {  // the caller is already handling the failure that caused this
    broken_ = true;
  }
  work = Work();
}

void Bucket::free(const at::Tensor& flat) {
  if (!broken_) release(flat);
}

void Bucket::start_gather() {
  allocate(flat_);
  const PlaceScope scope(place);
  gather_ = groups_.shard.all_gather(flat_, shard);
}

void Bucket::wait_gather() {
  wait_for(gather_);
  for (Entry& entry : entries) entry.slot->tensor = entry.leaf;
}

void Bucket::release_weights() {
  wait_for(gather_);
  free(flat_);
  for (Entry& entry : entries) entry.slot->tensor = entry.piece;
}

void Bucket::open_gradient() {
  if (has_result_) {
    settle();
    set_aside_ = gradient_shard.clone();
    has_result_ = false;
    for (Entry& entry : entries) entry.filled = false;
  }
  allocate(gradient_);
}

void Bucket::collect(Entry& entry) {
  at::Tensor& arrived = entry.leaf.mutable_grad();
  if (arrived.requires_grad()) {
    throw RuntimeError(str(entry.name, ": its gradient has a graph (create_graph); fully_shard supports first derivatives only"));
  }
  open_gradient();
  if (entry.filled) {
    add_into(entry.gradient, arrived);
  } else {
    copy_into(entry.gradient, arrived);
  }
  entry.filled = true;
  arrived.reset();
}

void Bucket::zero_unfilled() {
  for (Entry& entry : entries) {
    if (!std::exchange(entry.filled, true)) zero_range(gradient_, entry.offset, entry.offset + entry.numel);
  }
  zero_range(gradient_, numel_, gradient_.numel());
}

void Bucket::reduce() {
  open_gradient();
  zero_unfilled();
  owes_reduce = false;
  if (groups_.sharded()) {
    allocate(gradient_shard);
    const PlaceScope scope(place);
    reduction_ = groups_.shard.reduce_scatter(gradient_shard, gradient_);
    stage_ = Stage::kReducing;
  } else {
    start_next_sum();
  }
  has_result_ = stage_ != Stage::kNone;  // else the flat gradient is the result, and may grow on
}

void Bucket::start_next_sum() {
  const PlaceScope scope(place);
  if (stage_ < Stage::kReplicating && groups_.replicated()) {
    reduction_ = groups_.replicate.all_reduce(gradient_shard);
    stage_ = Stage::kReplicating;
  } else if (stage_ < Stage::kSumming && sharing.sum_gradients) {
    reduction_ = sharing.sum_gradients.all_reduce(gradient_shard);
    stage_ = Stage::kSumming;
  } else {
    stage_ = Stage::kNone;
  }
}

void Bucket::advance() {
  if (stage_ != Stage::kReducing) return;
  wait_for(reduction_);
  free(gradient_);
  for (Entry& entry : entries) entry.filled = false;
  start_next_sum();
}

void Bucket::settle() {
  advance();
  for (; stage_ != Stage::kNone; start_next_sum()) wait_for(reduction_);
  if (set_aside_.defined() && has_result_) add_into(gradient_shard, std::exchange(set_aside_, at::Tensor()));
}

void Bucket::drop_gradient() {
  if (!trainable) return;
  for (Entry& entry : entries) {
    entry.filled = false;
    entry.leaf.mutable_grad().reset();
  }
  settle();
  free(gradient_);
  free(gradient_shard);
  set_aside_.reset();
  has_result_ = false;
  owes_reduce = true;
}

void Bucket::abandon() {
  give_up(gather_);
  give_up(reduction_);
  stage_ = Stage::kNone;
  has_result_ = false;
  drop_gradient();
  if (groups_.sharded()) release_weights();
}

}  // namespace hyper_parallel::fsdp
