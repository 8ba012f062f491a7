// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/redistribute.h"

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
using testing_support::reference_local;
const WorldOptions kQuick{.timeout = std::chrono::seconds(30)};

at::Tensor whole_tensor(const Shape& shape) {
  int64_t numel = 1;
  for (int64_t size : shape) numel *= size;
  return at::arange(numel, at::kDouble).view(shape) * 3 - 5;
}

// Lengths that are uneven, and zero on the second rank of three or more.
std::vector<int64_t> ragged_sizes(int64_t total, int64_t count) {
  std::vector<int64_t> sizes(count, 0);
  sizes[0] = total - total / 3;
  sizes[count - 1] += total / 3;
  return sizes;
}

std::vector<Placement> placements_for(const Shape& shape, int64_t count, bool all_kinds) {
  std::vector<Placement> result{replicate(), shard(0), shard(1), partial()};
  if (!all_kinds) return result;
  int64_t numel = 1;
  for (int64_t size : shape) numel *= size;
  result.insert(result.end(), {strided_shard(0, 2), strided_shard(1, 2), ragged_shard(ragged_sizes(numel, count)),
                               ragged_shard(ragged_sizes(shape[0], count), 1),
                               ragged_shard(ragged_sizes(shape[0] * shape[1] / 2, count), 2), partial(ReduceOp::kMax)});
  return result;
}

// Every layout of the mesh that fits the shape.
std::vector<Layout> all_layouts(const DeviceMesh& mesh, const Shape& shape, bool all_kinds) {
  std::vector<std::vector<Placement>> lists{{}};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<std::vector<Placement>> longer;
    for (const auto& list : lists)
      for (const auto& placement : placements_for(shape, mesh.size(axis), all_kinds)) {
        longer.push_back(list);
        longer.back().push_back(placement);
      }
    lists = std::move(longer);
  }
  std::vector<Layout> layouts;
  for (auto& list : lists) {
    const bool mixed =
        std::count(list.begin(), list.end(), partial()) > 0 && std::count(list.begin(), list.end(), partial(ReduceOp::kMax)) > 0;
    if (!mixed && !layout_problem(mesh, list, shape)) layouts.emplace_back(mesh, list);
  }
  return layouts;
}

bool reachable(const Layout& from, const Layout& to) {
  for (size_t axis = 0; axis < from.placements().size(); ++axis)
    if (to.placements()[axis].is_partial() && !(from.placements()[axis] == to.placements()[axis])) return false;
  return true;
}

struct Case {
  std::vector<int64_t> mesh;
  Shape shape;
  bool all_kinds;
  size_t part = 0, num_parts = 1;  // of the source layouts
};
void PrintTo(const Case& value, std::ostream* out) { *out << str("mesh ", value.mesh, " shape ", value.shape, " part ", value.part); }
class RedistributeTest : public testing::TestWithParam<Case> {};

struct LayoutValue {
  Layout layout;
  const Spec* spec;
  at::Tensor local;  // what this rank should hold
};

std::vector<LayoutValue> all_values(const DeviceMesh& mesh, const Case& test) {
  const at::Tensor whole = whole_tensor(test.shape);
  std::vector<LayoutValue> values;
  for (const Layout& layout : all_layouts(mesh, test.shape, test.all_kinds))
    values.push_back({layout, intern_spec(layout, test.shape, at::kDouble), reference_local(whole, layout)});
  return values;
}

void check_pair(const LayoutValue& from, const LayoutValue& to) {
  const at::Tensor before = from.local.clone();
  const RedistributePlan& plan = redistribute_plan(from.spec, to.spec);
  const at::Tensor moved = plan.run(from.local);
  ASSERT_TRUE(moved.equal(to.local)) << from.layout.to_string() << " to " << to.layout.to_string() << " by " << plan.to_string() << "\n"
                                     << moved;
  ASSERT_TRUE(plan.steps().empty() ? moved.is_same(from.local) : moved.is_contiguous() && !moved.is_alias_of(from.local));
  ASSERT_TRUE(from.local.equal(before)) << "the input changed";
}

TEST_P(RedistributeTest, EveryPairOfPlacementsMatchesSlicing) {
  int64_t ranks = 1;
  for (int64_t size : GetParam().mesh) ranks *= size;
  std::atomic<int> num_pairs{0};
  run_threads(
      int(ranks),
      [&](World& world) {
        const std::vector<std::string> names{"a", "b", "c"};
        const DeviceMesh mesh(world.group(), GetParam().mesh, {names.begin(), names.begin() + GetParam().mesh.size()});
        const auto values = all_values(mesh, GetParam());
        for (size_t source = GetParam().part; source < values.size(); source += GetParam().num_parts) {
          ASSERT_EQ(values[source].spec->local_shape(), values[source].local.sizes().vec()) << values[source].spec->to_string();
          for (const LayoutValue& to : values) {
            if (!reachable(values[source].layout, to.layout)) continue;
            check_pair(values[source], to);
            if (testing::Test::HasFatalFailure()) return;
            if (world.rank() == 0) ++num_pairs;
          }
        }
      },
      kQuick);
  EXPECT_GT(num_pairs, 8);
}

INSTANTIATE_TEST_SUITE_P(Line, RedistributeTest,
                         testing::Values(Case{{2}, {5, 3}, true}, Case{{2}, {1, 4}, true}, Case{{2}, {0, 3}, true},
                                         Case{{2}, {3, 2, 4}, true}, Case{{3}, {7, 4}, true}, Case{{3}, {2, 6}, true},
                                         Case{{3}, {4, 4, 3}, true}));
INSTANTIATE_TEST_SUITE_P(Grid, RedistributeTest,
                         testing::Values(Case{{2, 2}, {4, 4}, true}, Case{{2, 2}, {5, 3}, true}, Case{{2, 2}, {1, 7}, true},
                                         Case{{2, 3}, {7, 4}, true}, Case{{2, 3}, {6, 6}, true}, Case{{2, 3}, {1, 2}, true}));
INSTANTIATE_TEST_SUITE_P(Cube, RedistributeTest, testing::Values(Case{{2, 2, 2}, {9, 3}, false}, Case{{2, 2, 2}, {8, 8}, false}));

std::vector<Case> in_parts(const Case& whole, size_t num_parts) {
  std::vector<Case> cases(num_parts, whole);
  for (size_t part = 0; part < num_parts; ++part) cases[part].part = part, cases[part].num_parts = num_parts;
  return cases;
}
INSTANTIATE_TEST_SUITE_P(CubeOfAllKinds, RedistributeTest, testing::ValuesIn(in_parts({{2, 2, 2}, {8, 8}, true}, 16)));

// ---- which steps are taken

std::string steps_between(const DeviceMesh& mesh, const std::vector<Placement>& from, const std::vector<Placement>& to) {
  const Shape shape{8, 8};
  return redistribute_plan(intern_spec({mesh, from}, shape, at::kFloat), intern_spec({mesh, to}, shape, at::kFloat)).to_string();
}

TEST(RedistributePlan, TakesTheCheapestSteps) {
  run_threads(
      4,
      [](World& world) {
        const DeviceMesh line(world.group(), {4}, {"tp"}), grid(world.group(), {2, 2}, {"dp", "tp"});
        EXPECT_EQ(steps_between(line, {partial()}, {shard(1)}), "reduce_scatter(tp)");
        EXPECT_EQ(steps_between(line, {partial()}, {replicate()}), "all_reduce(tp)");
        EXPECT_EQ(steps_between(line, {shard(0)}, {shard(1)}), "all_to_all(tp)");
        EXPECT_EQ(steps_between(line, {replicate()}, {shard(1)}), "slice(tp)");
        EXPECT_EQ(steps_between(line, {shard(0)}, {shard(0)}), "nothing");
        EXPECT_EQ(steps_between(grid, {shard(0), shard(0)}, {shard(0), replicate()}), "all_gather(tp)");
        EXPECT_EQ(steps_between(grid, {shard(0), partial()}, {shard(0), shard(0)}), "reduce_scatter(tp)");
        EXPECT_EQ(steps_between(grid, {partial(), partial()}, {partial(), shard(1)}), "reduce_scatter(tp)");
        const RedistributePlan& twice =
            redistribute_plan(intern_spec({line, {shard(0)}}, {8, 8}, at::kFloat), intern_spec({line, {replicate()}}, {8, 8}, at::kFloat));
        EXPECT_EQ(&twice, &redistribute_plan(twice.from(), twice.to()));
        EXPECT_EQ(twice.bytes_sent(), 3 * 2 * 8 * 4);
      },
      kQuick);
}

TEST(RedistributePlan, RefusesWhatCannotBe) {
  const DeviceMesh mesh(World::single().group(), {1, 1}, {"dp", "tp"});
  const Layout whole(mesh);
  const Spec* spec = intern_spec(whole, {4, 4}, at::kFloat);
  EXPECT_THAT(message_of<LayoutError>([&] {
                redistribute_plan(spec, intern_spec({mesh, {partial(), replicate()}}, {4, 4}, at::kFloat));
              }),
              HasSubstr("axis \"dp\" can't become Partial"));
  EXPECT_THAT(message_of<LayoutError>([&] {
                redistribute_plan(spec, intern_spec(whole, {4, 5}, at::kFloat));
              }),
              HasSubstr("the shapes differ"));
  EXPECT_THAT(message_of<LayoutError>([&] {
                redistribute_plan(spec, intern_spec(whole, {4, 4}, at::kDouble));
              }),
              HasSubstr("the dtypes differ"));
  EXPECT_THAT(message_of<LayoutError>([&] {
                redistribute_plan(spec, intern_spec(Layout(mesh["dp"]), {4, 4}, at::kFloat));
              }),
              HasSubstr("the meshes differ"));
}

}  // namespace
}  // namespace hyper_parallel
