// SPDX-License-Identifier: Apache-2.0
// Loss, every gradient, the norm and the weights after three steps equal plain autograd's on one rank, for every mesh and option.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <mutex>

#include "tests/fully_shard/support/training.h"

namespace hyper_parallel::testing_support {
namespace {

struct Row {
  const char* name;
  Case run;
};

class Equality : public testing::TestWithParam<Row> {};

void check_record(const Record& got, const Record& want, double tolerance) {
  EXPECT_NEAR(got.loss, want.loss, tolerance * (1 + std::abs(want.loss)));
  EXPECT_NEAR(got.norm, want.norm, tolerance * (1 + std::abs(want.norm)));
  EXPECT_LT(difference(got.grads, want.grads), tolerance);
  EXPECT_LT(difference(got.weights, want.weights), tolerance);
}

TEST_P(Equality, ToPlainAutograd) {
  const Case& run = GetParam().run;
  const std::vector<Record> want = plain(run);
  std::vector<std::vector<Record>> all(run.num_ranks());
  run_threads(run.num_ranks(), [&](World& world) {
    TinyModel model(run.model);
    const DeviceMesh mesh = mesh_of(world, run.mesh);
    FullyShard engine(model, model.units(), mesh, run.options);
    engine.materialize({.dtype = run.dtype, .seed = 7});
    all[world.rank()] = sharded(world, mesh, run, model, engine);
  });
  const double tolerance = run.dtype == at::kDouble ? 1e-9 : 1e-5;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (int step = 0; step < kNumSteps; ++step) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", step " << step);
      check_record(all[rank][step], want[step], tolerance);
      for (const auto& [name, weight] : all[0][step].weights) EXPECT_TRUE(at::equal(all[rank][step].weights.at(name), weight)) << name;
    }
  }
}

std::vector<Row> rows() {
  std::vector<Row> rows;
  static std::vector<std::string> names;  // outlives the rows
  names.reserve(256);
  const auto add = [&](std::string name, Case run) {
    names.push_back(std::move(name));
    rows.push_back({names.back().c_str(), std::move(run)});
  };
  const auto text = [](const std::vector<int64_t>& mesh) {
    std::string name;
    for (const int64_t size : mesh) name += (name.empty() ? "mesh" : "x") + std::to_string(size);
    return name;
  };
  const std::vector<std::vector<int64_t>> meshes{{1}, {2}, {3}, {4}, {8}, {2, 2}, {2, 1}, {1, 2}, {2, 3}};
  for (const auto& mesh : meshes) {
    const int64_t per_rank = kNumSamples / Case{.mesh = mesh}.num_ranks();
    add(text(mesh), {.mesh = mesh});
    add(text(mesh) + "_f32", {.mesh = mesh, .dtype = at::kFloat});
    if (per_rank % 3 == 0) add(text(mesh) + "_microbatches3", {.mesh = mesh, .num_microbatches = 3});
    add(text(mesh) + "_reduce_always", {.mesh = mesh, .num_microbatches = per_rank % 2 == 0 ? 2 : 3, .reduce_always = true});
  }
  for (const std::vector<int64_t>& mesh : {std::vector<int64_t>{1}, {2}, {2, 2}}) {
    for (const int num_microbatches : {1, 3}) {
      const std::string tail = "_" + text(mesh) + "_microbatches" + std::to_string(num_microbatches);
      const auto with = [&](TinyOptions model, FullyShardOptions options = {}) {
        return Case{.mesh = mesh, .num_microbatches = num_microbatches, .model = std::move(model), .options = options};
      };
      add("recompute_inside" + tail, with({.recompute = Recompute::kInside}));
      add("recompute_around" + tail, with({.recompute = Recompute::kAround}));
      add("frozen" + tail, with({.freeze_first = true}));
      for (const Recompute recompute : {Recompute::kNone, Recompute::kInside, Recompute::kAround}) {
        const std::string kind = recompute == Recompute::kNone ? "" : recompute == Recompute::kInside ? "_inside" : "_around";
        add("twice" + kind + tail, with({.recompute = recompute, .calls = {0, 0, 1, 2}}));
        add("twice_apart" + kind + tail, with({.recompute = recompute, .calls = {0, 1, 0, 2, 1}}));
      }
      add("block_not_called" + tail, with({.calls = {0, 2}}));
      add("stay_unsharded" + tail, with({}, {.reshard_after_forward = false}));
      add("no_prefetch" + tail, with({}, {.forward_prefetch_depth = 0, .backward_prefetch_depth = 0}));
      add("deep_prefetch" + tail, with({}, {.forward_prefetch_depth = 3, .backward_prefetch_depth = 2}));
      if (mesh != std::vector<int64_t>{1}) {
        Case uneven = with({});
        uneven.uneven_use = true;
        add("unused_on_one_rank" + tail, uneven);
        uneven.model.recompute = Recompute::kAround;
        add("unused_on_one_rank_recompute_around" + tail, uneven);
      }
    }
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Rows, Equality, testing::ValuesIn(rows()), [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hyper_parallel::testing_support
