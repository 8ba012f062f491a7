// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/comm_debug.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/progress_note.h"
#include "hyper_parallel/collectives/world.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using testing::HasSubstr;
using testing_support::message_of;

TEST(CommDebug, CountsEachKindAndWhatThisRankSends) {
  run_threads(4, [](World& world) {
    const ProcessGroup& group = world.group();
    const bool is_root = world.rank() == 1;
    const at::Tensor small = at::ones({3}), large = at::ones({12});
    const CommDebugMode comm;
    const auto sent = [&](auto&& run) {
      const CommDebugMode one;
      run();
      EXPECT_EQ(one.count(), 1);
      return one.bytes();
    };
    EXPECT_EQ(sent([&] { group.all_reduce(large).wait(); }), 2 * 48 * 3 / 4);
    EXPECT_EQ(sent([&] { group.all_gather(large, small).wait(); }), 3 * 12);
    EXPECT_EQ(sent([&] { group.reduce_scatter(small, large).wait(); }), 36);
    EXPECT_EQ(sent([&] { group.all_to_all(at::empty({12}), large).wait(); }), 36);
    EXPECT_EQ(sent([&] { group.broadcast(small, 1).wait(); }), is_root ? 36 : 0);
    EXPECT_EQ(sent([&] { group.reduce(small, 1).wait(); }), is_root ? 0 : 12);
    EXPECT_EQ(sent([&] { group.barrier(); }), 0);
    EXPECT_EQ(comm.count(), 7);  // inner scopes count for outer ones
    EXPECT_EQ(comm.count("all_reduce"), 1);
    EXPECT_EQ(comm.count("send"), 0);
    EXPECT_THAT(message_of([&] { comm.count("allreduce"); }),
                HasSubstr("no collective is named \"allreduce\" (allowed: all_reduce, all_gather"));
  });
}

TEST(CommDebug, GroupsOfOneCountNothing) {
  const World world = World::single();
  const CommDebugMode comm;
  world.group().all_reduce(at::ones({3})).wait();
  EXPECT_EQ(comm.count(), 0);
}

TEST(CommDebug, TreeByPlaceAndCause) {
  run_threads(2, [](World& world) {
    const CommDebugMode comm;
    const std::string op = "aten::mm";
    const at::Tensor x = at::ones({1024});
    const auto reduce_at = [&](const char* place) {
      const PlaceScope scope(interned_place(place));
      world.group().all_reduce(x).wait();
    };
    reduce_at("layers.10.mlp");
    reduce_at("layers.2.attention");
    reduce_at("layers.2");
    {
      const CauseScope cause(op);
      reduce_at("layers.2.attention");
      reduce_at("layers.2.attention");
    }
    world.group().barrier();
    EXPECT_EQ(comm.to_string(),
              "6 collectives, 20.0 KiB sent\n"
              "  1 x barrier over world (2 ranks)\n"
              "  layers: 5, 20.0 KiB\n"
              "    2: 4, 16.0 KiB\n"
              "      1 x all_reduce over world (2 ranks), 4.0 KiB\n"
              "      attention: 3, 12.0 KiB\n"
              "        1 x all_reduce over world (2 ranks), 4.0 KiB\n"
              "        2 x all_reduce over world (2 ranks), 8.0 KiB, for aten::mm\n"
              "    10: 1, 4.0 KiB\n"
              "      mlp: 1, 4.0 KiB\n"
              "        1 x all_reduce over world (2 ranks), 4.0 KiB\n");
  });
}

}  // namespace
}  // namespace hyper_parallel
