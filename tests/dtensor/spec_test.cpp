// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/spec.h"

#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"
#include "tests/dtensor/support/reference.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using testing::HasSubstr;
using testing_support::message_of;
const WorldOptions kQuick{.timeout = std::chrono::seconds(20)};

TEST(Layout, BothNotationsAgree) {
  run_threads(
      4,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2, 2}, {"dp", "tp"});
        EXPECT_EQ(Layout(mesh)("dp", "tp"), Layout(mesh, {shard(0), shard(1)}));
        EXPECT_EQ(Layout(mesh)("None", "tp"), Layout(mesh, {replicate(), shard(1)}));
        EXPECT_EQ(Layout(mesh)("dp,tp", ""), Layout(mesh, {shard(0), shard(0)}));
        EXPECT_EQ(Layout(mesh)(), Layout(mesh));
        EXPECT_THAT(message_of<LayoutError>([&] { return Layout(mesh)("tp,dp"); }), HasSubstr("against the mesh's order"));
        EXPECT_THAT(message_of<LayoutError>([&] { return Layout(mesh)("dp", "dp"); }), HasSubstr("splits two dims"));
        EXPECT_THAT(message_of<LayoutError>([&] { return Layout(mesh)("pp"); }), HasSubstr("no axis \"pp\" (known: dp, tp)"));
        EXPECT_THAT(message_of<LayoutError>([&] { Layout(mesh, {shard(0)}); }), HasSubstr("1 placements [S(0)] for the 2 axes"));
      },
      kQuick);
}

TEST(Spec, EqualSpecsAreOneObject) {
  const DeviceMesh mesh(World::single().group(), {1}, {"tp"});
  const Spec* spec = intern_spec(Layout(mesh)("tp"), {4, 6}, at::kFloat);
  EXPECT_EQ(spec, intern_spec({mesh, {shard(-2)}}, {4, 6}, at::kFloat, {6, 1}));
  EXPECT_NE(spec, intern_spec(Layout(mesh)("tp"), {4, 6}, at::kDouble));
  EXPECT_NE(spec, intern_spec(Layout(mesh)("tp"), {4, 6}, at::kFloat, {1, 4}));
  EXPECT_NE(spec, intern_spec(Layout(mesh), {4, 6}, at::kFloat));
  EXPECT_EQ(spec->to_string(), "Float [4, 6] on DeviceMesh(tp=1) [S(0)]");
}

TEST(Spec, BadLayoutsAreNamed) {
  const DeviceMesh mesh(World::single().group(), {1}, {"tp"});
  EXPECT_THAT(message_of<LayoutError>([&] {
                intern_spec(Layout(mesh, {shard(2)}), {4, 6}, at::kFloat);
              }),
              HasSubstr("S(2) of a tensor with 2 dims"));
  EXPECT_THAT(message_of<LayoutError>([&] {
                intern_spec(Layout(mesh, {ragged_shard({5})}), {4, 6}, at::kFloat);
              }),
              HasSubstr("adds up to 5, not 24"));
  EXPECT_THAT(message_of<LayoutError>([&] {
                intern_spec(Layout(mesh, {ragged_shard({2, 2}, 1)}), {4, 6}, at::kFloat);
              }),
              HasSubstr("has 2 sizes for axis \"tp\" of 1"));
  EXPECT_THAT(message_of<LayoutError>([&] { strided_shard(0, 0); }), HasSubstr("split 0"));
  EXPECT_THAT(message_of<LayoutError>([&] { ragged_shard({-1}); }), HasSubstr("negative"));
}

// The pieces of every rank, written into one tensor from reference shards, rebuild it.
TEST(Spec, PiecesSayWhereEveryShardLies) {
  run_threads(
      4,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2, 2}, {"a", "b"});
        const at::Tensor whole = at::arange(60, at::kDouble).view({5, 4, 3});
        for (const Layout& layout : {Layout(mesh)("a,b"), Layout(mesh)("a", "b"), Layout(mesh, {strided_shard(0, 2), shard(0)}),
                                     Layout(mesh, {ragged_shard({41, 19}), replicate()}), Layout(mesh, {ragged_shard({0, 30}), shard(1)}),
                                     Layout(mesh, {shard(1), ragged_shard({7, 3}, 2)})}) {
          const Spec* spec = intern_spec(layout, {5, 4, 3}, at::kDouble);
          at::Tensor rebuilt = at::zeros_like(whole), copies = at::zeros_like(whole);
          for (int64_t index = 0; index < mesh.size(); ++index) {
            const auto coordinates = coordinates_of(mesh, index);
            const at::Tensor local = testing_support::reference_local(whole, mesh, layout.placements(), coordinates);
            EXPECT_EQ(spec->local_shape(coordinates), local.sizes().vec());
            for (const ShardPiece& piece : spec->pieces(coordinates)) {
              at::Tensor target = rebuilt, count = copies;
              for (int dim = 0; dim < 3; ++dim) target = target.narrow(dim, piece.box.offsets[dim], piece.box.sizes[dim]);
              for (int dim = 0; dim < 3; ++dim) count = count.narrow(dim, piece.box.offsets[dim], piece.box.sizes[dim]);
              target.copy_(local.as_strided(piece.box.sizes, piece.strides, local.storage_offset() + piece.offset));
              count.add_(1);
            }
          }
          EXPECT_TRUE(rebuilt.equal(whole)) << layout.to_string();
          EXPECT_EQ(copies.min().item<double>(), copies.max().item<double>()) << layout.to_string();
        }
      },
      kQuick);
}

}  // namespace
}  // namespace hyper_parallel
