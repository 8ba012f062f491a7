// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/device_mesh.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::message_of;
const WorldOptions kQuick{.timeout = std::chrono::seconds(20)};

TEST(DeviceMesh, CoordinatesAreRowMajorAndGroupsFollowAxes) {
  run_threads(
      8,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2, 4}, {"replicate", "fsdp"});
        EXPECT_EQ(mesh.coordinate(0), world.rank() / 4);
        EXPECT_EQ(mesh.coordinate(1), world.rank() % 4);
        EXPECT_EQ(mesh.local_rank("fsdp"), world.rank() % 4);
        at::Tensor sum = at::full({1}, double(world.rank()));
        mesh.group("fsdp").all_reduce(sum).wait();
        EXPECT_EQ(sum.item<double>(), world.rank() < 4 ? 0 + 1 + 2 + 3 : 4 + 5 + 6 + 7);
        at::Tensor other = at::full({1}, double(world.rank()));
        mesh["replicate"].group().all_reduce(other).wait();
        EXPECT_EQ(other.item<double>(), 2 * (world.rank() % 4) + 4);
        EXPECT_EQ(mesh.to_string(), "DeviceMesh(replicate=2, fsdp=4)");
      },
      kQuick);
}

TEST(DeviceMesh, EqualMeshesAreOneObjectAndShareGroups) {
  run_threads(
      4,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2, 2}, {"a", "b"}), again(world.group(), {2, 2}, {"a", "b"}),
            other(world.group(), {2, 2}, {"a", "c"});
        EXPECT_EQ(mesh, again);
        EXPECT_EQ(mesh.identity(), again.identity());
        EXPECT_FALSE(mesh == other);
        EXPECT_EQ(mesh["b"], again["b"]);
        EXPECT_EQ(mesh.group(1), other.group(1));
        EXPECT_EQ(DeviceMesh(world.group(), {1, 4}, {"one", "all"}).group("all"), world.group());
      },
      kQuick);
}

TEST(DeviceMesh, SlicesAndFlattenedAxes) {
  run_threads(
      8,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2, 2, 2}, {"pp", "dp", "tp"});
        const std::vector<std::string> dp_tp{"dp", "tp"}, pp_tp{"pp", "tp"}, pp_dp{"pp", "dp"};
        const DeviceMesh flat = mesh.flatten(dp_tp, "model");
        EXPECT_EQ(flat.size(), 4);
        EXPECT_EQ(flat.coordinate(0), world.rank() % 4);
        EXPECT_EQ(mesh["model"], flat);
        EXPECT_EQ(mesh.flatten(dp_tp, "model"), flat);
        EXPECT_EQ(mesh.group("model").size(), 4);
        const int base = world.rank() / 2 % 2 * 2;
        const DeviceMesh outer = mesh.slice(pp_tp);
        EXPECT_THAT(std::vector<int>(outer.ranks().begin(), outer.ranks().end()), ElementsAre(base, base + 1, base + 4, base + 5));
        EXPECT_THAT(std::vector<int>(outer.group().ranks().begin(), outer.group().ranks().end()),
                    ElementsAre(base, base + 1, base + 4, base + 5));
        at::Tensor sum = at::full({1}, double(world.rank()));
        outer.group().all_reduce(sum).wait();
        EXPECT_EQ(sum.item<double>(), 4 * base + 10);
        EXPECT_THAT(message_of<LayoutError>([&] { mesh.flatten(pp_tp, "x"); }), HasSubstr("not adjacent"));
        EXPECT_THAT(message_of<LayoutError>([&] { mesh.flatten(pp_dp, "model"); }), HasSubstr("already names other axes"));
      },
      kQuick);
}

TEST(DeviceMesh, BadInputIsNamed) {
  const World world = World::single();
  EXPECT_THAT(message_of<LayoutError>([&] { DeviceMesh(world.group(), {2}, {"dp"}); }), HasSubstr("needs 2 ranks, the group has 1"));
  EXPECT_THAT(message_of<LayoutError>([&] { DeviceMesh(world.group(), {1, 1}, {"dp"}); }), HasSubstr("names 1"));
  EXPECT_THAT(message_of<LayoutError>([&] { DeviceMesh(world.group(), {1, 1}, {"dp", "dp"}); }), HasSubstr("appears twice"));
  EXPECT_THAT(message_of<LayoutError>([&] { DeviceMesh(world.group(), {1, 0}, {"dp", "tp"}); }), HasSubstr("\"tp\" has size 0"));
  const DeviceMesh mesh(world.group(), {1, 1}, {"dp", "tp"});
  EXPECT_THAT(message_of<LayoutError>([&] { mesh["pp"]; }), HasSubstr("no axis \"pp\" (known: dp, tp)"));
}

}  // namespace
}  // namespace hyper_parallel
