// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/placement.h"

#include <algorithm>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {

Placement replicate() { return {}; }
Placement shard(int dim) { return {.kind = Placement::Kind::kShard, .dim = dim}; }
Placement partial(ReduceOp reduce) { return {.kind = Placement::Kind::kPartial, .reduce = reduce}; }

Placement strided_shard(int dim, int64_t split) {
  if (split < 1) throw LayoutError(str("strided_shard: split ", split, " (allowed: 1 or more)"));
  return {.kind = Placement::Kind::kStridedShard, .dim = dim, .split = split};
}

Placement ragged_shard(std::vector<int64_t> sizes, int num_dims) {
  for (int64_t size : sizes)
    if (size < 0) throw LayoutError(str("ragged_shard: negative length in ", sizes));
  return {.kind = Placement::Kind::kRaggedShard, .dim = num_dims, .sizes = std::move(sizes)};
}

std::string Placement::to_string() const {
  switch (kind) {
    case Kind::kReplicate:
      return "R";
    case Kind::kShard:
      return str("S(", dim, ")");
    case Kind::kStridedShard:
      return str("S(", dim, ", split=", split, ")");
    case Kind::kRaggedShard:
      return dim < 0 ? str("Ragged(", sizes, ")") : str("Ragged(", sizes, ", dims=", dim, ")");
    case Kind::kPartial:
      return str("P(", name_of(reduce), ")");
  }
  return "?";
}

std::string to_string(const std::vector<Placement>& placements) {
  std::vector<std::string> parts;
  for (const auto& placement : placements) parts.push_back(placement.to_string());
  return bracketed(parts);
}

Interval chunk_of(int64_t size, int64_t count, int64_t index) {
  const int64_t step = (size + count - 1) / count;
  return {std::min(index * step, size), std::min((index + 1) * step, size)};
}

}  // namespace hyper_parallel
