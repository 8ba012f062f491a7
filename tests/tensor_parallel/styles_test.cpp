// SPDX-License-Identifier: Apache-2.0
// Every style against the same modules on one rank: results, input gradients and this rank's part of every parameter's gradient.
#include "hyper_parallel/tensor_parallel/styles.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/comm_debug.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/dtensor/dtensor.h"
#include "hyper_parallel/fully_shard/fully_shard.h"
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

// Every gradient of the module is this rank's part of the reference's.
void expect_gradients(Module& module, Module& reference, int rank) {
  const auto slots = module.named_parameters(), whole = reference.named_parameters();
  for (size_t i = 0; i < slots.size(); ++i) {
    const at::Tensor gradient = slots[i].second->tensor.grad();
    ASSERT_TRUE(gradient.defined() || slots[i].second->tensor.numel() == 0) << slots[i].first;
    if (!gradient.defined()) continue;
    EXPECT_TRUE(at::allclose(gradient, part_of(whole[i].second->tensor.grad(), *slots[i].second), 1e-9, 1e-12))
        << slots[i].first << " on rank " << rank << gradient;
  }
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
    expect_gradients(model, reference, world.rank());
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

TEST_P(Styles, OwnSplit) {
  const SplitFunction first_has_most = [](int64_t num_ranks, int64_t rank) {
    const int64_t begin = rank == 0 ? 0 : std::min<int64_t>(8 + rank - 1, 10),
                  end = rank == num_ranks - 1 ? 10 : std::min<int64_t>(8 + rank, 10);
    return std::vector<IndexRange>{{begin, end}};
  };
  compare<Block>({{"up", ColwiseParallel({.split = first_has_most})},
                  {"gate", ColwiseParallel({.split = first_has_most})},
                  {"down", RowwiseParallel({.split = first_has_most})}},
                 GetParam(), 11);
  compare<Block>({{"up", ColwiseParallel({.output = replicate(), .split = first_has_most})},
                  {"down", RowwiseParallel({.input = replicate(), .split = first_has_most})}},
                 GetParam(), 11);
}

TEST_P(Styles, RowwiseTakesASplitSequence) {
  const int num_ranks = GetParam();
  Block reference;
  materialize(reference, {.dtype = at::kDouble, .seed = 5});
  const at::Tensor whole = at::arange(100, at::kDouble).sin().view({2, 5, 10}), want = reference.down(whole).detach();
  run_threads(num_ranks, [&](World& world) {
    Block model;
    const DeviceMesh mesh(world.group(), {num_ranks}, {"tp"});
    parallelize_module(model, mesh, {{"down", RowwiseParallel({.input = shard(1)})}});
    materialize(model, {.dtype = at::kDouble, .seed = 5});
    const Interval mine = chunk_of(5, num_ranks, world.rank());
    EXPECT_TRUE(at::allclose(model.down(whole.narrow(1, mine.begin, mine.size())), want, 1e-9, 1e-12));
    const at::Tensor as_dtensor = distribute_tensor(whole, Layout(mesh, {shard(1)}));
    EXPECT_TRUE(at::allclose(model.down(as_dtensor), want, 1e-9, 1e-12));
  });
}

TEST_P(Styles, ColwiseGivesASplitSequence) {
  compare<Block>({{"embed", ColwiseParallel({.output = shard(1)})},
                  {"norm", SequenceParallel()},
                  {"up", ColwiseParallel({.input = shard(1)})},
                  {"gate", ColwiseParallel({.input = shard(1)})},
                  {"down", RowwiseParallel()}},
                 GetParam(), 11);
}

TEST_P(Styles, UnevenChunksAsDTensors) {
  const int num_ranks = GetParam();
  Block reference;
  materialize(reference, {.dtype = at::kDouble, .seed = 5});
  const at::Tensor x = at::arange(24, at::kDouble).sin().view({4, 6}), want = reference.up(x).detach();
  run_threads(num_ranks, [&](World& world) {
    Block model;
    parallelize_module(model, DeviceMesh(world.group(), {num_ranks}, {"tp"}), {{"up", ColwiseParallel({.use_local_output = false})}});
    materialize(model, {.dtype = at::kDouble, .seed = 5});
    EXPECT_TRUE(at::allclose(DTensor(model.up(x)).full_tensor(), want, 1e-9, 1e-12));
  });
}

// Two branches that end, each, in a reduction: the second one must know that its input has been entered.
struct Branches : ModuleOf<Branches> {
  explicit Branches(Slot slot = root()) : ModuleOf(std::move(slot)) {}
  Linear a{child("a"), {.in = 6, .out = 10}};
  Linear b{child("b"), {.in = 10, .out = 6}};
  Linear c{child("c"), {.in = 6, .out = 10}};
  Linear d{child("d"), {.in = 10, .out = 6}};
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor first = b(a(x).sin());
    return first + d(c(x).sin());
  }
};
struct Outer : ModuleOf<Outer> {
  explicit Outer(Slot slot = root()) : ModuleOf(std::move(slot)) {}
  Embedding embed{child("embed"), {.num = 11, .dim = 6}};
  Branches branches{child("branches")};
  at::Tensor forward(const at::Tensor& ids) { return branches(embed(ids)); }
};

TEST_P(Styles, AnEnteredInputStaysEnteredOverBranches) {
  compare<Outer>({{"embed", RowwiseParallel({.output = shard(1)})},
                  {"branches", PrepareModuleInput({Move{shard(1), replicate()}})},
                  {"branches.a", ColwiseParallel()},
                  {"branches.c", ColwiseParallel()},
                  {"branches.b", RowwiseParallel()},
                  {"branches.d", RowwiseParallel()}},
                 GetParam(), 11);
}

// Both graphs are alive at once, and the chunks of 7 and 8 look alike on the first of two ranks.
TEST_P(Styles, TwoSequenceLengths) {
  const int num_ranks = GetParam();
  const std::vector<at::Tensor> ids{at::arange(14, at::kLong).remainder(11).view({2, 7}),
                                    at::arange(16, at::kLong).remainder(11).view({2, 8})};
  Block reference;
  materialize(reference, {.dtype = at::kDouble, .seed = 5});
  for (const at::Tensor& each : ids) reference(each).sin().sum().backward();
  run_threads(num_ranks, [&](World& world) {
    Block model;
    const TensorParallel tp = parallelize_module(model, DeviceMesh(world.group(), {num_ranks}, {"tp"}),
                                                 {{"embed", RowwiseParallel({.output = shard(1)})},
                                                  {"norm", SequenceParallel()},
                                                  {"up", ColwiseParallel({.input = shard(1)})},
                                                  {"gate", ColwiseParallel({.input = shard(1)})},
                                                  {"down", RowwiseParallel({.output = replicate()})}});
    materialize(model, {.dtype = at::kDouble, .seed = 5});
    const at::Tensor first = model.norm(model.embed(ids[0])), second = model.norm(model.embed(ids[1]));
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const at::Tensor& x : {first, second}) loss = loss + model.down(at::silu(model.gate(x)) * model.up(x)).sin().sum();
    loss.backward();
    tp.sum_gradients();
    expect_gradients(model, reference, world.rank());
  });
}

struct Norms : ModuleOf<Norms> {
  explicit Norms(Slot slot = root()) : ModuleOf(std::move(slot)) {
    for (int64_t i = 0; i < 12; ++i) {
      padding.push_back(std::make_unique<std::string>(static_cast<size_t>(i * 97 % 61), 'x'));  // addresses in no order
      norms.push_back(std::make_unique<RmsNorm>(child("norm" + std::to_string(i)), RmsNormOptions{.size = 3 + i}));
    }
  }
  std::vector<std::unique_ptr<std::string>> padding;
  std::vector<std::unique_ptr<RmsNorm>> norms;
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor total = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < norms.size(); ++i) total = total + (*norms[i])(x.narrow(-1, 0, 3 + static_cast<int64_t>(i))).sin().sum();
    return total;
  }
};

TEST(Styles, GradientsAreSummedInTheSameOrderOnEveryRank) {
  const at::Tensor x = at::arange(2 * 5 * 14, at::kDouble).cos().view({2, 5, 14});
  Norms reference;
  materialize(reference, {.dtype = at::kDouble, .seed = 5});
  reference(x).backward();
  run_threads(4, [&](World& world) {
    std::vector<std::unique_ptr<char[]>> holes;
    for (int i = 0; i < 50 * world.rank(); ++i) holes.push_back(std::make_unique<char[]>(64));
    Norms model;
    const TensorParallel tp =
        parallelize_module(model, DeviceMesh(world.group(), {4}, {"tp"}), {{"norm*", SequenceParallel({.input = replicate()})}});
    materialize(model, {.dtype = at::kDouble, .seed = 5});
    model(x).backward();
    tp.sum_gradients();
    expect_gradients(model, reference, world.rank());
  });
}

TEST(Styles, AnEarlierPassWithoutGraphIsNotReused) {
  run_threads(2, [](World& world) {
    Block model;
    parallelize_module(model, DeviceMesh(world.group(), {2}, {"tp"}), {{"up", ColwiseParallel()}, {"gate", ColwiseParallel()}});
    materialize(model, {.dtype = at::kDouble, .seed = 5});
    const at::Tensor x = at::ones({1, 2, 6}, at::kDouble).requires_grad_();
    {
      const at::NoGradGuard no_grad;
      model.up(x);
    }
    (model.up(x).sum() + model.gate(x).sum()).backward();
    Block reference;
    materialize(reference, {.dtype = at::kDouble, .seed = 5});
    const at::Tensor y = at::ones({1, 2, 6}, at::kDouble).requires_grad_();
    (reference.up(y).sum() + reference.gate(y).sum()).backward();
    EXPECT_TRUE(at::allclose(x.grad(), y.grad(), 1e-9, 1e-12));
  });
}

TEST(Styles, AFullyShardedUnitIsOutsideOfTheStyle) {
  Block reference;
  materialize(reference, {.dtype = at::kDouble, .seed = 5});
  const at::Tensor ids = at::arange(10, at::kLong).view({2, 5});
  const at::Tensor want = reference(ids).detach();
  run_threads(4, [&](World& world) {
    const DeviceMesh mesh(world.group(), {2, 2}, {"fsdp", "tp"});
    Block model;
    const TensorParallel tp =
        parallelize_module(model, mesh["tp"], {{"up", ColwiseParallel()}, {"gate", ColwiseParallel()}, {"down", RowwiseParallel()}});
    FullyShard engine(model, std::vector<Module*>{&model.down}, mesh["fsdp"], {.sharing = tp.sharing, .model_group = tp.group});
    engine.materialize({.dtype = at::kDouble, .seed = 5});
    EXPECT_TRUE(at::allclose(model(ids), want, 1e-9, 1e-12));
  });
}

TEST(Styles, OneCollectiveForSiblings) {
  run_threads(2, [](World& world) {
    Block model;
    const DeviceMesh mesh(world.group(), {2}, {"tp"});
    parallelize_module(model, mesh, {{"up", ColwiseParallel()}, {"gate", ColwiseParallel()}, {"down", RowwiseParallel()}});
    materialize(model, {.dtype = at::kDouble, .seed = 5});
    const at::Tensor x = at::ones({1, 2, 6}, at::kDouble).requires_grad_();
    const auto count = [](const auto& run) {
      const CommDebugMode comm;
      run();
      return uint64_t(comm.count());
    };
    at::Tensor y;
    EXPECT_EQ(count([&] {
                const at::Tensor a = model.up(x), b = model.gate(x);
                y = model.down(at::silu(b) * a);
              }),
              1u);
    EXPECT_EQ(count([&] { y.sum().backward(); }), 1u);
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
  EXPECT_THAT(error_of({{"up", ColwiseParallel()}, {"up", ColwiseParallel()}}), HasSubstr("\"up\": two styles want to hold weight"));
  EXPECT_THAT(error_of({{"down", RowwiseParallel({.output = partial()})}}),
              HasSubstr("its bias can't be added to an output that is P(sum)"));
  EXPECT_THAT(error_of({{"down", RowwiseParallel({.output = shard(-1)})}}), HasSubstr("its bias can't be added"));
  EXPECT_THAT(error_of({{"up", ColwiseParallel({.parts = {4, 6}, .use_local_output = false})}}),
              HasSubstr("an own split can't be its output"));
  const auto split = [](IndexRange range) { return [range](int64_t, int64_t) { return std::vector<IndexRange>{range}; }; };
  EXPECT_THAT(error_of({{"up", ColwiseParallel({.split = split({0, 9})})}}), HasSubstr("the split ends at 9, of 10"));
  EXPECT_THAT(error_of({{"down", RowwiseParallel({.split = split({1, 10})})}}),
              HasSubstr("the split gives rank 0 the range [1, 10), expected one from 0"));
}

TEST(Styles, AModuleWithValuesIsRefused) {
  run_threads(1, [](World& world) {
    Block model;
    materialize(model, {.dtype = at::kDouble, .seed = 5});
    try {
      parallelize_module(model, DeviceMesh(world.group(), {1}, {"tp"}), {});
      FAIL() << "not refused";
    } catch (const LayoutError& error) {
      EXPECT_THAT(error.what(), HasSubstr("embed.weight has its values already"));
    }
  });
}

}  // namespace
}  // namespace hyper_parallel
