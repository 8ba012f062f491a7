// SPDX-License-Identifier: Apache-2.0
// Attention heads over tensor-parallel ranks, exact for any numbers. Ranks take neighbouring query heads with the key heads that they read:
//
//   key heads >= ranks                  groups of query heads are spread as evenly as can be
//   fewer, and a divisor of the ranks   each key head is held by several ranks, which share out its query heads
//   fewer otherwise                     every rank holds all keys and values, and repeats what its query heads read
//
//   AttentionHeads heads{.num_heads = 8, .num_kv_heads = 2, .head_dim = 64};
//   ParallelPlan plan{{"q_proj", QueryHeads(heads)}, {"k_proj", KeyHeads(heads)}, {"v_proj", KeyHeads(heads)},
//                     {"o_proj", OutputHeads(heads)}};
//
// The modules between see local heads: [batch, seq, heads of this rank, head_dim], possibly none.
#pragma once
#include <string>
#include <vector>

#include "hyper_parallel/tensor_parallel/styles.h"

namespace hyper_parallel {

struct AttentionHeads {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
};

// Which heads a rank works on.
struct HeadShare {
  IndexRange query, key;
  int64_t num_sharing = 1;                // neighbouring ranks that hold these key heads
  std::vector<int64_t> repeat_keys = {};  // if not empty: the key head of each query head, keys being whole
};
HeadShare head_share(const AttentionHeads& heads, int64_t num_ranks, int64_t rank);

class QueryHeads : public ParallelStyle {
 public:
  explicit QueryHeads(AttentionHeads heads, Placement input = replicate()) : heads_(heads), input_(std::move(input)) {}
  std::string describe() const override { return "QueryHeads"; }
  void apply(const StyleTarget& target) const override;

 private:
  AttentionHeads heads_;
  Placement input_;
};

class KeyHeads : public ParallelStyle {  // of keys or values
 public:
  explicit KeyHeads(AttentionHeads heads, Placement input = replicate()) : heads_(heads), input_(std::move(input)) {}
  std::string describe() const override { return "KeyHeads"; }
  void apply(const StyleTarget& target) const override;

 private:
  AttentionHeads heads_;
  Placement input_;
};

class OutputHeads : public ParallelStyle {
 public:
  explicit OutputHeads(AttentionHeads heads, Placement output = replicate()) : heads_(heads), output_(std::move(output)) {}
  std::string describe() const override { return "OutputHeads"; }
  void apply(const StyleTarget& target) const override;

 private:
  AttentionHeads heads_;
  Placement output_;
};

}  // namespace hyper_parallel
