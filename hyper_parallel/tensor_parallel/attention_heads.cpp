// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/tensor_parallel/attention_heads.h"

#include <ATen/ops/tensor.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/nn/layers.h"
#include "hyper_parallel/tensor_parallel/detail/hooks.h"

namespace hyper_parallel {
namespace {

IndexRange balanced(int64_t count, int64_t num_ranks, int64_t rank) {
  const auto begin = [&](int64_t r) { return r * (count / num_ranks) + std::min(r, count % num_ranks); };
  return {begin(rank), begin(rank + 1)};
}

IndexRange times(IndexRange range, int64_t factor) { return {range.begin * factor, range.end * factor}; }

SplitFunction query_split(AttentionHeads heads) {
  return [heads](int64_t num_ranks, int64_t rank) {
    return std::vector<IndexRange>{times(head_share(heads, num_ranks, rank).query, heads.head_dim)};
  };
}

Linear& checked_linear(const StyleTarget& target, const ParallelStyle& style, const AttentionHeads& heads, int64_t num_heads, int64_t dim) {
  auto* linear = dynamic_cast<Linear*>(&target.module);
  if (linear == nullptr) target.fail(style.describe(), "it takes a Linear module");
  if (heads.num_heads <= 0 || heads.num_kv_heads <= 0 || heads.num_heads % heads.num_kv_heads != 0)
    target.fail(style.describe(), str(heads.num_heads, " query heads can't be shared out over ", heads.num_kv_heads, " key heads"));
  if (linear->weight.sizes[static_cast<size_t>(dim)] != num_heads * heads.head_dim)
    target.fail(style.describe(), str("the weight is ", linear->weight.sizes, ", for ", num_heads, " heads of ", heads.head_dim));
  return *linear;
}

// Keys or values: this rank's heads, or all of them, of which it picks one for each query head.
struct KeyHook : detail::RegionHook {
  KeyHook(const StyleTarget& target, Placement input, const HeadShare& share, int64_t head_dim)
      : RegionHook(target), input(std::move(input)), head_dim(head_dim) {
    if (!share.repeat_keys.empty()) picked = at::tensor(share.repeat_keys, at::kLong);
  }
  void pre_forward(Module&, TensorRefs arguments) override { *arguments[0] = region->enter(region->local(*arguments[0], input), input); }
  void post_forward(Module&, TensorRefs results) override {
    if (!picked.defined()) return;
    at::Tensor& y = *results[0];
    std::vector<int64_t> sizes = y.sizes().vec(), by_head = sizes;
    by_head.back() = y.size(-1) / head_dim;
    by_head.push_back(head_dim);
    sizes.back() = picked.numel() * head_dim;
    y = y.view(by_head).index_select(-2, picked).view(sizes);
  }
  const Placement input;
  const int64_t head_dim;
  at::Tensor picked;
};

}  // namespace

HeadShare head_share(const AttentionHeads& heads, int64_t num_ranks, int64_t rank) {
  HYPER_PARALLEL_CHECK(heads.num_kv_heads > 0, heads.num_kv_heads, " key heads");
  const int64_t group = heads.num_heads / heads.num_kv_heads;
  if (heads.num_kv_heads >= num_ranks) {
    const IndexRange keys = balanced(heads.num_kv_heads, num_ranks, rank);
    return {times(keys, group), keys};
  }
  if (num_ranks % heads.num_kv_heads == 0) {
    const int64_t sharing = num_ranks / heads.num_kv_heads, key = rank / sharing;
    const IndexRange within = balanced(group, sharing, rank % sharing);
    return {{key * group + within.begin, key * group + within.end}, {key, key + 1}, sharing};
  }
  HeadShare share{balanced(heads.num_heads, num_ranks, rank), {0, heads.num_kv_heads}, num_ranks};
  for (int64_t head = share.query.begin; head < share.query.end; ++head) share.repeat_keys.push_back(head / group);
  return share;
}

void QueryHeads::apply(const StyleTarget& target) const {
  checked_linear(target, *this, heads_, heads_.num_heads, 0);
  ColwiseParallel({.input = input_, .split = query_split(heads_)}).apply(target);
}

void OutputHeads::apply(const StyleTarget& target) const {
  checked_linear(target, *this, heads_, heads_.num_heads, 1);
  RowwiseParallel({.output = output_, .split = query_split(heads_)}).apply(target);
}

void KeyHeads::apply(const StyleTarget& target) const {
  Linear& linear = checked_linear(target, *this, heads_, heads_.num_kv_heads, 0);
  ParallelRegion& region = *target.region;
  const HeadShare share = head_share(heads_, region.size(), region.rank());
  const bool whole = share.key.size() == heads_.num_kv_heads;
  const TensorPart part = whole ? TensorPart{} : TensorPart{0, {times(share.key, heads_.head_dim)}};
  ParameterSharing sharing;
  if (share.num_sharing > 1)
    sharing = {
        .in_common = true,
        .sum_gradients = share.num_sharing == region.size() ? region.group() : region.neighbours(static_cast<int>(share.num_sharing)),
        .counted = region.rank() % share.num_sharing == 0};
  region.hold(target, linear.weight, part, sharing);
  if (linear.bias) region.hold(target, *linear.bias, part, sharing);
  linear.add_hook(std::make_shared<KeyHook>(target, input_, share, heads_.head_dim));
}

}  // namespace hyper_parallel
