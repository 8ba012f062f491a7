// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/tensor_parallel/attention_heads.h"

#include <gtest/gtest.h>

namespace hyper_parallel {
namespace {

TEST(AttentionHeads, EveryQueryHeadHasOneRankAndItsKeyHead) {
  for (int64_t num_kv_heads = 1; num_kv_heads <= 8; ++num_kv_heads) {
    for (int64_t group = 1; group <= 4; ++group) {
      const AttentionHeads heads{num_kv_heads * group, num_kv_heads, 4};
      for (int64_t num_ranks = 1; num_ranks <= 9; ++num_ranks) {
        int64_t next = 0, most = 0, least = heads.num_heads;
        for (int64_t rank = 0; rank < num_ranks; ++rank) {
          const HeadShare share = head_share(heads, num_ranks, rank);
          EXPECT_EQ(share.query.begin, next);
          next = share.query.end;
          most = std::max(most, share.query.size());
          least = std::min(least, share.query.size());
          const int64_t num_local_keys = share.repeat_keys.empty() ? share.key.size() : share.query.size();
          for (int64_t head = share.query.begin; head < share.query.end; ++head) {
            const int64_t local = head - share.query.begin;
            ASSERT_EQ(share.query.size() % num_local_keys, 0);
            // attention() gives query head h the key head h / (heads / kv_heads).
            const int64_t read = local / (share.query.size() / num_local_keys);
            const int64_t key = share.repeat_keys.empty() ? share.key.begin + read : share.repeat_keys[static_cast<size_t>(read)];
            EXPECT_EQ(key, head / group) << num_kv_heads << " x " << group << " over " << num_ranks << ", rank " << rank;
          }
        }
        EXPECT_EQ(next, heads.num_heads);
        EXPECT_LE(most - least, num_kv_heads >= num_ranks ? group : 1);
      }
    }
  }
}

}  // namespace
}  // namespace hyper_parallel
