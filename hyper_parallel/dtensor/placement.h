// SPDX-License-Identifier: Apache-2.0
// Placement: what one mesh axis does to a tensor.
//
//   replicate()                every rank of the axis holds all of it
//   shard(0)                   split along dim 0 as torch.chunk does: ceil-sized pieces, the last ones smaller or empty
//   strided_shard(0, 2)        dim 0 is cut into 2 blocks, each is sharded, a rank holds its piece of every block
//   ragged_shard({3, 0, 5})    the flattened tensor is cut into pieces of these lengths; the local shard is 1-d
//   ragged_shard({3, 1}, 2)    the same over the first 2 dims flattened; the local shape is [length, rest...]
//   partial()                  every rank holds a term; the value is their sum (or avg, max, min, prod)
//
// Several axes that shard one dim nest, the outer (first) axis first. A ragged axis cuts what all other axes leave; one per tensor.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/process_group.h"

namespace hyper_parallel {

struct Placement {
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard, kRaggedShard, kPartial };
  Kind kind = Kind::kReplicate;
  ReduceOp reduce = ReduceOp::kSum;  // of kPartial
  int dim = 0;                       // of kShard and kStridedShard; of kRaggedShard the number of leading dims that it flattens, -1 for all
  int64_t split = 1;                 // of kStridedShard
  std::vector<int64_t> sizes;        // of kRaggedShard, one per rank of the axis

  bool is_replicate() const { return kind == Kind::kReplicate; }
  bool is_partial() const { return kind == Kind::kPartial; }
  bool is_ragged() const { return kind == Kind::kRaggedShard; }
  bool is_shard() const { return kind == Kind::kShard || kind == Kind::kStridedShard; }  // of one dim
  bool is_shard(int of_dim) const { return is_shard() && dim == of_dim; }
  bool operator==(const Placement&) const = default;
  std::string to_string() const;  // R, S(0), S(0, split=2), Ragged([3, 0, 5]), P(sum)
};

Placement replicate();
Placement shard(int dim);
Placement strided_shard(int dim, int64_t split);
Placement ragged_shard(std::vector<int64_t> sizes, int num_dims = -1);
Placement partial(ReduceOp reduce = ReduceOp::kSum);

std::string to_string(const std::vector<Placement>& placements);  // [S(0), R]

// The part [begin, end) of `size` elements that piece `index` of `count` gets: torch.chunk's rule.
struct Interval {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};
Interval chunk_of(int64_t size, int64_t count, int64_t index);

}  // namespace hyper_parallel
