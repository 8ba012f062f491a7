// SPDX-License-Identifier: Apache-2.0
// Redistribution between meshes: every pair of layouts against plain slicing, and its backward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/comm_debug.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/dtensor/dtensor.h"
#include "tests/dtensor/support/reference.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using testing::HasSubstr;
using testing_support::message_of;
using testing_support::reference_local;
const WorldOptions kQuick{.timeout = std::chrono::seconds(30)};
const Shape kShape{5, 3};

at::Tensor shard_here(const at::Tensor& whole, const Layout& layout) {
  return layout.mesh().contains_this_rank() ? reference_local(whole, layout) : at::empty({0}, whole.options());
}

std::vector<Layout> layouts_on(const DeviceMesh& mesh, bool with_partial) {
  std::vector<Placement> kinds{replicate(), shard(0), shard(1), strided_shard(0, 2)};
  if (with_partial) kinds.push_back(partial());
  std::vector<Layout> layouts;
  for (const Placement& first : kinds) {
    if (mesh.num_axes() == 1) layouts.push_back({mesh, {first}});
    for (const Placement& second : kinds)
      if (mesh.num_axes() == 2) layouts.push_back({mesh, {first, second}});
  }
  if (mesh.size() == 2 && mesh.num_axes() == 1) layouts.push_back({mesh, {ragged_shard({4, 11})}});
  return layouts;
}

// Values and gradients of `from` -> `to` on all ranks of the world.
void check_move(const at::Tensor& whole, const Layout& from, const Layout& to) {
  const std::string what = from.to_string() + " to " + to.to_string();
  at::Tensor local = shard_here(whole, from).clone().requires_grad_();
  const DTensor moved = from_local(local, from, kShape).redistribute(to);
  ASSERT_TRUE(moved.layout() == to) << what;
  ASSERT_TRUE(moved.to_local().detach().equal(shard_here(whole, to))) << what;
  const at::Tensor weight = whole * whole + 1;
  (moved.to_local() * shard_here(weight, to)).sum().backward();
  std::vector<Placement> expected = from.placements();
  for (Placement& placement : expected)
    if (placement.is_partial()) placement = replicate();
  ASSERT_TRUE(local.grad().equal(shard_here(weight, Layout(from.mesh(), expected)))) << what;
}

void check_all(const DeviceMesh& a, const DeviceMesh& b) {
  const at::Tensor whole = at::arange(15, at::kDouble).view(kShape);
  for (const Layout& from : layouts_on(a, true))
    for (const Layout& to : layouts_on(b, false)) ASSERT_NO_FATAL_FAILURE(check_move(whole, from, to));
}

TEST(CrossMesh, ToOtherRanksAndBack) {
  run_threads(
      4,
      [](World& world) {
        const DeviceMesh low(world.group(), std::array{0, 1}, {2}, {"tp"}), high(world.group(), std::array{3, 2}, {2}, {"tp"});
        const DeviceMesh three(world.group(), std::array{0, 1, 2}, {3}, {"dp"}), all(world.group(), {2, 2}, {"dp", "tp"});
        EXPECT_EQ(low.contains_this_rank(), world.rank() < 2);
        check_all(low, high);
        check_all(high, three);
        check_all(three, low);
        check_all(all, high);
        check_all(low, all);
      },
      kQuick);
}

TEST(CrossMesh, SubMeshesAndFlattenedMeshes) {
  run_threads(
      4,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2, 2}, {"dp", "tp"});
        const std::array<std::string, 2> both{"dp", "tp"};
        const DeviceMesh flat = mesh.flatten(both, "all"), other(world.group(), {4}, {"x"});
        check_all(mesh, flat);
        check_all(flat, mesh);
        check_all(mesh["tp"], mesh);
        check_all(mesh, mesh["dp"]);
        check_all(mesh["dp"], mesh["tp"]);
        check_all(other, mesh);
      },
      kQuick);
}

TEST(CrossMesh, SendsWhatIsLackingOnly) {
  run_threads(
      4,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2, 2}, {"dp", "tp"}), four(world.group(), {4}, {"x"});
        const DeviceMesh swapped(world.group(), std::array{0, 2, 1, 3}, {4}, {"y"});
        const DTensor x = from_local(at::ones({2, 3}), Layout(four)("x"), {8, 3});
        const CommDebugMode comm;
        x.redistribute(Layout(mesh)("dp,tp"));  // the same rows
        EXPECT_EQ(comm.count("all_to_all"), 1);
        EXPECT_EQ(comm.bytes(), 0);
        x.redistribute(Layout(swapped)("y"));
        EXPECT_EQ(comm.bytes(), world.rank() == 1 || world.rank() == 2 ? 24 : 0);
      },
      kQuick);
}

TEST(CrossMesh, WhatCannotBeIsSaid) {
  run_threads(
      2,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2}, {"a"}), pair(world.group(), std::array{1, 0}, {2}, {"b"});
        const DeviceMesh own(world.group().split(world.rank(), 0, "own"), {1}, {"c"});
        const DTensor x = from_local(at::ones({1}), Layout(mesh)("a"), {2});
        EXPECT_THAT(message_of([&] { x.redistribute(Layout(own)); }), HasSubstr("the meshes are not made of one group's ranks"));
        EXPECT_THAT(message_of([&] { x.redistribute(Layout(pair, {partial()})); }), HasSubstr("between meshes, neither may be Partial"));
        EXPECT_THAT(message_of([&] {
                      DeviceMesh(world.group(), std::array{0, 2}, {2}, {"a"});
                    }),
                    HasSubstr("mesh ranks [0, 2]: 2 is not in the group (allowed: 0 to 1)"));
        EXPECT_THAT(message_of([&] { DeviceMesh(world.group(), std::array{0}, {2}, {"a"}); }), HasSubstr("needs 2 ranks, 1 are given"));
      },
      kQuick);
}

}  // namespace
}  // namespace hyper_parallel
