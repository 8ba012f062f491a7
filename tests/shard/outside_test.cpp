// SPDX-License-Identifier: Apache-2.0
// Ops on a mesh that a rank is not in.
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "hyper_parallel/collectives/world.h"
#include "tests/shard/support/compare.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using testing::HasSubstr;
using testing_support::message_of;

TEST(Outside, OpsGiveEmptyShards) {
  run_threads(3, [](World& world) {
    const DeviceMesh pair(world.group(), std::array{0, 2}, {2}, {"tp"});
    const bool inside = world.rank() != 1;
    const at::Tensor local = inside ? at::ones({world.rank() == 0 ? 3 : 2, 3}, at::kDouble) : at::empty({0}, at::kDouble);
    const DTensor x = from_local(local, Layout(pair)("tp"), {5, 3});
    const at::Tensor y = at::relu(at::mm(x, x.tensor().t())).softmax(1);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({5, 5}));
    EXPECT_EQ(DTensor(y).to_local().numel(), !inside ? 0 : world.rank() == 0 ? 15 : 10);
    at::Tensor z = y.clone();
    z.add_(1).mul_(y.split(2, 0)[0].sum());
    EXPECT_EQ(DTensor(z).to_local().numel(), !inside ? 0 : world.rank() == 0 ? 15 : 10);
    if (inside) return;
    EXPECT_THAT(x.to_string(), HasSubstr("nothing (this rank is not in the mesh)"));
    EXPECT_THAT(message_of([&] { pair.group(); }), HasSubstr("of ranks [0, 2]: this rank is not in it"));
    EXPECT_THAT(message_of([&] { at::nonzero(x); }), HasSubstr("only the values tell the result's shape"));
  });
}

}  // namespace
}  // namespace hyper_parallel
