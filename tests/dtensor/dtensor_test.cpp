// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/dtensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/philox.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/dtensor/factories.h"
#include "tests/dtensor/support/reference.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using testing::HasSubstr;
using testing_support::message_of;
using testing_support::reference_local;
const WorldOptions kQuick{.timeout = std::chrono::seconds(30)};
const Shape kShape{5, 3};

std::vector<Layout> layouts_of(const DeviceMesh& mesh) {
  const std::vector<Placement> kinds{replicate(), shard(0), shard(1), strided_shard(0, 2), partial(), partial(ReduceOp::kAvg)};
  std::vector<Layout> layouts;
  for (const auto& outer : kinds)
    for (const auto& inner : kinds)
      if (!(outer.is_partial() && inner.is_partial() && !(outer == inner))) layouts.push_back({mesh, {outer, inner}});
  layouts.push_back({mesh, {ragged_shard({4, 11}), replicate()}});
  return layouts;
}

TEST(DTensor, GradientsFlowThroughFromLocalRedistributeAndToLocal) {
  run_threads(
      4,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2, 2}, {"dp", "tp"});
        const at::Tensor whole = at::arange(15, at::kDouble).view(kShape), weight = whole * whole + 1;
        for (const Layout& from : layouts_of(mesh))
          for (const Layout& to : layouts_of(mesh)) {
            if (to.has_partial()) continue;
            at::Tensor local = reference_local(whole, from).clone().requires_grad_();
            const DTensor x = from_local(local, from, kShape);
            const at::Tensor out = x.redistribute(to).to_local();
            ASSERT_TRUE(out.detach().equal(reference_local(whole, to)));
            (out * reference_local(weight, to)).sum().backward();
            double terms = 1;  // an average over n ranks passes 1/n of the gradient to each
            std::vector<Placement> expected = from.placements();
            for (int axis = 0; axis < 2; ++axis) {
              if (expected[axis] == partial(ReduceOp::kAvg)) terms *= double(mesh.size(axis));
              if (expected[axis].is_partial()) expected[axis] = replicate();
            }
            ASSERT_TRUE(local.grad().equal(reference_local(weight, Layout(mesh, expected)) / terms))
                << from.to_string() << " to " << to.to_string();
          }
      },
      kQuick);
}

TEST(DTensor, FullTensorAndReducePartial) {
  run_threads(
      3,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {3}, {"tp"});
        const at::Tensor whole = at::arange(15, at::kDouble).view(kShape);
        for (const auto& placement : {replicate(), shard(0), shard(1), partial(), partial(ReduceOp::kMax), partial(ReduceOp::kMin),
                                      partial(ReduceOp::kProd), ragged_shard({1, 0, 14})}) {
          const Layout layout(mesh, {placement});
          const DTensor x = from_local(reference_local(whole, layout), layout, kShape);
          EXPECT_EQ(x.tensor().sizes(), at::IntArrayRef(kShape));
          EXPECT_TRUE(x.full_tensor().equal(whole)) << placement.to_string();
          EXPECT_EQ(x.is_partial(), placement.is_partial());
          EXPECT_FALSE(x.reduce_partial().is_partial());
        }
        // Used on different rows by every rank: the caller says that its gradient is a term of a sum.
        at::Tensor leaf = whole.clone().requires_grad_();
        const at::Tensor all = from_local(leaf, Layout(mesh)).to_local(Layout(mesh, {partial()}));
        (all * double(world.rank() + 1)).sum().backward();
        EXPECT_TRUE(leaf.grad().equal(whole * 0 + 6));
      },
      kQuick);
}

TEST(DTensor, DistributeTensorKeepsTheSliceAndCanBroadcast) {
  run_threads(
      4,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2, 2}, {"dp", "tp"});
        at::Tensor whole = at::arange(15, at::kDouble).view(kShape);
        const Layout layout = Layout(mesh)("dp", "tp");
        const DTensor x = distribute_tensor(whole, layout);
        EXPECT_TRUE(x.to_local().equal(reference_local(whole, layout)));
        const DTensor from_one = distribute_tensor(whole + double(world.rank()), layout, 2);
        EXPECT_TRUE(from_one.to_local().equal(reference_local(whole + 2.0, layout)));
        const DTensor copy = distribute_tensor(whole, Layout(mesh));
        EXPECT_FALSE(copy.to_local().is_alias_of(whole));
      },
      kQuick);
}

TEST(DTensor, StateEntriesFollowMemory) {
  run_threads(
      4,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2, 2}, {"dp", "tp"});
        const Shape shape{4, 7, 2};
        const at::Tensor whole = at::arange(56, at::kDouble).view(shape);
        for (const Layout& layout : {Layout(mesh)("dp", "tp"), Layout(mesh, {strided_shard(1, 3), shard(1)}),
                                     Layout(mesh, {ragged_shard({9, 47}), replicate()}), Layout(mesh)("", "dp,tp")}) {
          const StateEntry entry = DTensor(from_local(reference_local(whole, layout), layout, shape)).state_entry("w");
          EXPECT_EQ(entry.sizes, shape);
          const at::Tensor flat = entry.local.flatten();
          int64_t position = 0;
          for (const Box& box : entry.boxes) {
            at::Tensor block = whole;
            for (int dim = 0; dim < 3; ++dim) block = block.narrow(dim, box.offsets[dim], box.sizes[dim]);
            EXPECT_TRUE(flat.narrow(0, position, box.numel()).equal(block.flatten())) << layout.to_string();
            position += box.numel();
          }
          EXPECT_EQ(position, flat.numel());
        }
      },
      kQuick);
}

TEST(Factories, RandomValuesAreBitIdenticalOnEveryMesh) {
  const Philox stream(7, "w");
  at::Tensor expected;  // element by element from the generator itself
  {
    const Philox philox(7, "w");
    expected = at::arange(35, at::kDouble);
    for (int64_t index = 0; index < 35; ++index) expected.data_ptr<double>()[index] = philox.normal(uint64_t(index));
    expected = expected.view({7, 5}).to(at::kFloat);
  }
  for (int ranks : {1, 2, 3, 4, 8})
    run_threads(
        ranks,
        [&](World& world) {
          const DeviceMesh mesh(world.group(), {ranks}, {"tp"});
          std::vector<int64_t> ragged(ranks, 0);
          ragged[0] = 35;
          for (const auto& placement : {replicate(), shard(0), shard(1), strided_shard(0, 3), ragged_shard(ragged)})
            EXPECT_TRUE(randn({7, 5}, Layout(mesh, {placement}), {.stream = stream}).full_tensor().equal(expected))
                << placement.to_string();
          manual_seed(3);
          const at::Tensor first = rand({7, 5}, Layout(mesh)("tp")).full_tensor(), second = rand({7, 5}, Layout(mesh)("tp")).full_tensor();
          EXPECT_FALSE(first.equal(second));
          manual_seed(3);
          EXPECT_TRUE(rand({7, 5}, Layout(mesh)("", "tp")).full_tensor().equal(first));
          EXPECT_TRUE(full({4, 1}, 2.5, Layout(mesh)("tp"), {.dtype = at::kBFloat16}).full_tensor().eq(2.5).all().item<bool>());
          EXPECT_EQ(zeros({4}, Layout(mesh)("tp")).tensor().size(0), 4);
        },
        kQuick);
}

TEST(DTensor, BadInputIsNamed) {
  const DeviceMesh mesh(World::single().group(), {1}, {"tp"});
  EXPECT_THAT(message_of<LayoutError>([&] { DTensor(at::arange(3)); }), HasSubstr("a plain tensor of shape [3] where a DTensor is needed"));
  EXPECT_THAT(message_of<LayoutError>([&] { from_local(at::arange(3), Layout(mesh)("tp"), {4}); }),
              HasSubstr("the local tensor has shape [3]"));
  EXPECT_THAT(message_of<LayoutError>([&] { from_local(at::arange(3), Layout(mesh, {ragged_shard({3})})); }),
              HasSubstr("pass the global sizes"));
  EXPECT_THAT(message_of<LayoutError>([&] { zeros({4}, Layout(mesh, {partial()})); }), HasSubstr("no Partial tensor"));
  EXPECT_THAT(message_of<LayoutError>([&] { from_local(at::arange(3), Layout(mesh, {partial()})).state_entry("w"); }),
              HasSubstr("w: a Partial tensor has no state"));
  const DTensor x = from_local(at::arange(3), Layout(mesh)("tp"));
  EXPECT_THAT(x.to_string(), HasSubstr("DTensor Long [3] on DeviceMesh(tp=1) [S(0)]\n  this rank holds [0:3]\n  3 values: min "));
  EXPECT_THROW(x.tensor().data_ptr(), std::exception);
}

}  // namespace
}  // namespace hyper_parallel
