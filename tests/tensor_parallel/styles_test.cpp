// SPDX-License-Identifier: Apache-2.0
// Every style against the same modules on one rank: results, input gradients and this rank's part of every parameter's gradient.
#include "hyper_parallel/tensor_parallel/styles.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/dtensor/dtensor.h"
#include "hyper_parallel/nn/layers.h"
#include "hyper_parallel/tensor_parallel/parallelize_module.h"

namespace hyper_parallel {
namespace {

using testing::HasSubstr;

struct Block : ModuleOf<Block> {
  explicit Block(Slot slot = root()) : ModuleOf(std::move(slot)) {}
  Embedding embed{child("embed"), {.num = 11, .dim = 6}};
  RmsNorm norm{child("norm"), {.size = 6}};
  Linear up{child("up"), {.in = 6, .out = 10, .bias = true}};
  Linear gate{child("gate"), {.in = 6, .out = 10}};
  Linear down{child("down"), {.in = 10, .out = 6, .bias = true}};
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = norm(embed(ids));
    return down(at::silu(gate(x)) * up(x));
  }
};

// gate and up in one projection.
struct Fused : ModuleOf<Fused> {
  explicit Fused(Slot slot = root()) : ModuleOf(std::move(slot)) {}
  Embedding embed{child("embed"), {.num = 7, .dim = 6}};
  Linear gate_up{child("gate_up"), {.in = 6, .out = 10, .bias = true}};
  Linear down{child("down"), {.in = 5, .out = 6}};
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor y = gate_up(embed(ids));
    const int64_t half = y.size(-1) / 2;
    return down(at::silu(y.narrow(-1, 0, half)) * y.narrow(-1, half, half));
  }
};

// The part of `whole` that the slot holds.
at::Tensor part_of(const at::Tensor& whole, const Parameter& slot) {
  if (slot.part().is_whole()) return whole;
  std::vector<at::Tensor> pieces{whole.narrow(slot.part().dim, 0, 0)};
  for (const IndexRange& range : slot.part().ranges) pieces.push_back(whole.narrow(slot.part().dim, range.begin, range.size()));
  return at::cat(pieces, slot.part().dim);
}

template <class Model>
void compare(const ParallelPlan& plan, int num_ranks, int64_t vocab, const Placement& output = replicate()) {
  Model reference;
  materialize(reference, {.dtype = at::kDouble, .seed = 5});
  const at::Tensor ids = at::arange(10, at::kLong).mul(3).remainder(vocab).view({2, 5});
  const at::Tensor want = reference(ids);
  const at::Tensor weight = at::arange(want.numel(), at::kDouble).sin().view(want.sizes());
  (want * weight).sum().backward();
  run_threads(num_ranks, [&](World& world) {
    Model model;
    const DeviceMesh mesh(world.group(), {num_ranks}, {"tp"});
    const TensorParallel tp = parallelize_module(model, mesh, plan);
    materialize(model, {.dtype = at::kDouble, .seed = 5});
    const at::Tensor got = model(ids);
    at::Tensor expected = want.detach(), scale = weight;
    if (output.is_shard()) {
      const Interval mine = chunk_of(want.size(output.dim), num_ranks, world.rank());
      expected = expected.narrow(output.dim, mine.begin, mine.size());
      scale = scale.narrow(output.dim, mine.begin, mine.size());
    }
    ASSERT_TRUE(at::allclose(got, expected, 1e-9, 1e-12)) << got << expected;
    (got * scale).sum().backward();
    tp.sum_gradients();
    const auto slots = model.named_parameters(), whole = reference.named_parameters();
    for (size_t i = 0; i < slots.size(); ++i) {
      const at::Tensor gradient = slots[i].second->tensor.grad();
      ASSERT_TRUE(gradient.defined() || slots[i].second->tensor.numel() == 0) << slots[i].first;
      if (!gradient.defined()) continue;
      EXPECT_TRUE(at::allclose(gradient, part_of(whole[i].second->tensor.grad(), *slots[i].second), 1e-9, 1e-12))
          << slots[i].first << " on rank " << world.rank() << gradient;
    }
  });
}

class Styles : public testing::TestWithParam<int> {};

TEST_P(Styles, ColwiseThenRowwise) {
  compare<Block>({{"embed", RowwiseParallel()}, {"up", ColwiseParallel()}, {"gate", ColwiseParallel()}, {"down", RowwiseParallel()}},
                 GetParam(), 11);
}

TEST_P(Styles, SequenceParallel) {
  compare<Block>({{"embed", RowwiseParallel({.output = shard(1)})},
                  {"norm", SequenceParallel()},
                  {"up", ColwiseParallel({.input = shard(1)})},
                  {"gate", ColwiseParallel({.input = shard(1)})},
                  {"down", RowwiseParallel({.output = shard(1)})}},
                 GetParam(), 11, shard(1));
}

TEST_P(Styles, EmbeddingColumnsGatheredAndRowwiseFromWhole) {
  compare<Block>({{"embed", ColwiseParallel({.output = replicate()})}, {"down", RowwiseParallel({.input = replicate()})}}, GetParam(), 11);
}

TEST_P(Styles, ColwiseGathersItsResult) {
  compare<Block>({{"up", ColwiseParallel({.output = replicate()})}, {"gate", ColwiseParallel({.output = replicate()})}}, GetParam(), 11);
}

TEST_P(Styles, PreparedInputAndOutput) {
  compare<Block>({{"embed", RowwiseParallel({.output = shard(1)})},
                  {"norm", PrepareModuleInputOutput({Move{shard(1), replicate(), GradientOf::kWhole}}, {})},
                  {"*p", ColwiseParallel()},
                  {"gate", ColwiseParallel()},
                  {"down", RowwiseParallel({.output = shard(1)})},
                  {"down", PrepareModuleOutput({Move{shard(1), replicate()}})}},
                 GetParam(), 11);
}

TEST_P(Styles, FusedPartsAreSplitEachByItself) {
  compare<Fused>({{"embed", RowwiseParallel()}, {"gate_up", ColwiseParallel({.parts = {5, 5}})}, {"down", RowwiseParallel()}}, GetParam(),
                 7);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Styles, testing::Values(1, 2, 3, 4, 8));

TEST(Styles, OneCollectiveForSiblings) {
  run_threads(2, [](World& world) {
    Block model;
    const DeviceMesh mesh(world.group(), {2}, {"tp"});
    parallelize_module(model, mesh, {{"up", ColwiseParallel()}, {"gate", ColwiseParallel()}, {"down", RowwiseParallel()}});
    materialize(model, {.dtype = at::kDouble, .seed = 5});
    const at::Tensor x = at::ones({1, 2, 6}, at::kDouble).requires_grad_();
    const at::Tensor a = model.up(x), b = model.gate(x);
    model.down(at::silu(b) * a).sum().backward();
    EXPECT_EQ(x.grad().sizes(), at::IntArrayRef({1, 2, 6}));
  });
}

TEST(Styles, DTensorsInAndOut) {
  run_threads(2, [](World& world) {
    Block model;
    const DeviceMesh mesh(world.group(), {2}, {"tp"});
    parallelize_module(model, mesh, {{"up", ColwiseParallel({.use_local_output = false})}});
    materialize(model, {.dtype = at::kDouble, .seed = 5});
    const at::Tensor x = distribute_tensor(at::ones({4, 6}, at::kDouble), Layout(mesh, {shard(0)}));
    const DTensor y(model.up(x));
    EXPECT_TRUE(y.spec()->placement(0).is_shard(1));
    EXPECT_EQ(y.full_tensor().sizes(), at::IntArrayRef({4, 10}));
  });
}

std::string error_of(const ParallelPlan& plan) {
  std::string text;
  run_threads(1, [&](World& world) {
    Block model;
    try {
      parallelize_module(model, DeviceMesh(world.group(), {1}, {"tp"}), plan);
    } catch (const LayoutError& error) {
      text = error.what();
    }
  });
  return text;
}

TEST(Styles, MistakesAreNamed) {
  EXPECT_THAT(error_of({{"layers.*.up", ColwiseParallel()}}),
              HasSubstr("no module is named \"layers.*.up\" (there are: embed, norm, up, gate, down)"));
  EXPECT_THAT(error_of({{"norm", ColwiseParallel()}}), HasSubstr("ColwiseParallel on \"norm\": it takes Linear and Embedding modules"));
  EXPECT_THAT(error_of({{"up", ColwiseParallel({.parts = {3, 3}})}}), HasSubstr("don't add up to 10"));
  EXPECT_THAT(error_of({{"up", ColwiseParallel()}, {"up", RowwiseParallel()}}), HasSubstr("two styles want different parts of weight"));
}

}  // namespace
}  // namespace hyper_parallel
