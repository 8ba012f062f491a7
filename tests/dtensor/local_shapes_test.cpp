// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/dtensor/dtensor.h"
#include "tests/dtensor/support/reference.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing_support::message_of;
using testing_support::reference_local;

TEST(LocalShapes, GlobalSizesFollowFromUnevenAndEmptyShards) {
  run_threads(4, [](World& world) {
    const DeviceMesh mesh(world.group(), {2, 2}, {"dp", "tp"});
    for (const Shape& shape : {Shape{5, 3}, Shape{1, 6}, Shape{3, 0}, Shape{7, 2}}) {
      const at::Tensor whole = at::arange(shape[0] * shape[1], at::kDouble).view(shape);
      for (const Layout& layout : {Layout(mesh)("dp", "tp"), Layout(mesh)("dp,tp"), Layout(mesh)("", "dp"),
                                   Layout(mesh, {shard(-1), partial()}), Layout(mesh, {strided_shard(0, 2), shard(1)}), Layout(mesh)}) {
        const DTensor x = from_uneven_local(reference_local(whole, layout), layout);
        EXPECT_EQ(x.tensor().sizes(), at::IntArrayRef(shape)) << layout.to_string();
        EXPECT_TRUE(x.full_tensor().equal(whole)) << layout.to_string();
      }
    }
  });
}

TEST(LocalShapes, ShardsOfNoOneTensorAreAnErrorOnAllRanks) {
  run_threads(3, [](World& world) {
    const DeviceMesh mesh(world.group(), {3}, {"tp"});
    const int64_t rank = world.rank();
    EXPECT_THAT(
        message_of([&] { from_uneven_local(at::ones({rank == 0 ? 4 : 2}), Layout(mesh)("tp")); }),
        AnyOf(
            HasSubstr("local tensor has shape [4], but Float [8] on DeviceMesh(tp=3) [S(0)] gives it [3] (for other sizes: a RaggedShard)"),
            HasSubstr("has shape [2], but Float [8]"), HasSubstr("another rank's local tensor doesn't fit the layout")));
    EXPECT_THAT(message_of([&] {
                  from_uneven_local(at::ones({2, rank}), Layout(mesh)("tp"));
                }),
                HasSubstr("axis \"tp\": rank 0 has [2, 0], rank 1 has [2, 1], rank 2 has [2, 2]; no S(0) of one tensor"));
    EXPECT_THAT(message_of([&] {
                  from_uneven_local(rank == 1 ? at::ones({2}) : at::ones({2, 1}), Layout(mesh));
                }),
                HasSubstr("rank 0 has [2, 1], rank 1 has [2]"));
    EXPECT_THAT(message_of([&] { from_uneven_local(at::ones({2}), Layout(mesh, {shard(1)})); }), HasSubstr("no S(1) of one tensor"));
    EXPECT_THAT(message_of([&] {
                  from_uneven_local(at::ones({2}), Layout(mesh, {ragged_shard({2, 2, 2})}));
                }),
                HasSubstr("pass the sizes to from_local"));
  });
}

TEST(LocalShapes, DebugModeComparesRanks) {
  run_threads(2,
              [](World& world) {
                const DeviceMesh mesh(world.group(), {2}, {"tp"});
                const int64_t rank = world.rank();
                // Each rank derives another shape from its own.
                EXPECT_THAT(message_of([&] {
                              from_local(at::ones({3 - rank, 2}), Layout(mesh)("tp"));
                            }),
                            rank == 0 ? HasSubstr("rank 1 means a tensor of shape [4, 2], this rank Float [6, 2]")
                                      : HasSubstr("rank 0 means a tensor of shape [6, 2], this rank Float [4, 2]"));
                EXPECT_THAT(
                    message_of([&] {
                      from_local(at::ones({3, 2}), Layout(mesh)("tp"), {5, 2});
                    }),
                    HasSubstr("rank 1's local tensor has shape [3, 2], but Float [5, 2] on DeviceMesh(tp=2) [S(0)] gives it [2, 2]"));
                EXPECT_TRUE(from_local(at::ones({3 - rank, 2}), Layout(mesh)("tp"), {5, 2}).full_tensor().equal(at::ones({5, 2})));
              },
              {.check_collectives = true});
}

}  // namespace
}  // namespace hyper_parallel
