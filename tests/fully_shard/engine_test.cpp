// SPDX-License-Identifier: Apache-2.0
// What the engine does beside the numbers: memory, number of collectives, evaluation, resident weights, exceptions, errors.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <thread>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/progress_note.h"
#include "tests/fully_shard/support/training.h"

namespace hyper_parallel::testing_support {
namespace {

using testing::HasSubstr;

struct Rank {
  explicit Rank(World& world, const Case& run = {}, std::vector<int64_t> shape = {})
      : run(run),
        model(run.model),
        mesh(mesh_of(world, shape.empty() ? std::vector<int64_t>{world.size()} : shape)),
        engine(model, model.units(), mesh, run.options) {
    engine.materialize({.dtype = at::kDouble, .seed = 7});
  }
  Case run;
  TinyModel model;
  DeviceMesh mesh;
  FullyShard engine;
};

template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing thrown";
}

struct Sleeper : ModuleHook {
  void pre_forward(Module&, TensorRefs) override { std::this_thread::sleep_for(std::chrono::milliseconds(900)); }
};

size_t bytes_of(const at::Tensor& tensor) { return tensor.storage().nbytes(); }

TEST(FullyShard, WeightsAreBitIdenticalForEveryMesh) {
  TinyModel model;
  materialize(model, {.dtype = at::kDouble, .seed = 7});
  Named want;
  for (const auto& [name, slot] : model.named_parameters()) want[name] = slot->tensor.detach();
  for (const int num_ranks : {1, 2, 3, 4, 8}) {
    run_threads(num_ranks, [&](World& world) {
      Rank rank(world);
      const Named got = whole(rank.mesh, rank.engine.parameters(), false);
      ASSERT_EQ(got.size(), want.size());
      for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(got.at(name), tensor)) << name << " on " << num_ranks;
    });
  }
}

// Five trainable buckets with two frozen ones beside them (gates), and the root's: tied weight and temperature.
TEST(FullyShard, OneReduceAUnitAndStep) {
  run_threads(2, [](World& world) {
    Rank rank(world, {.num_microbatches = 3});
    backward_all(world, rank.run, rank.model, rank.engine, 0);
    const FullyShardStatistics first = rank.engine.statistics();
    EXPECT_EQ(first.num_reduces, 6);
    backward_all(world, rank.run, rank.model, rank.engine, 1);
    const FullyShardStatistics& second = rank.engine.statistics();
    EXPECT_EQ(second.num_reduces, 12);
    // Root 1, embedding 1 + 1 (its backward), blocks 3 x 2 x 2, head 1 x 2; times 3 microbatches.
    EXPECT_EQ(second.num_gathers - first.num_gathers, 3 * (1 + 2 + 12 + 2));
    EXPECT_LE(second.most_units_live, 3);  // the root, the one in use, the one ahead
  });
}

TEST(FullyShard, NothingIsGatheredOnOneRank) {
  run_threads(1, [](World& world) {
    Rank rank(world);
    const void* before = rank.model.blocks[0].up.tensor.const_data_ptr();
    backward_all(world, rank.run, rank.model, rank.engine, 0);
    EXPECT_EQ(rank.engine.statistics().num_gathers, 0);
    EXPECT_EQ(rank.model.blocks[0].up.tensor.const_data_ptr(), before);
    EXPECT_EQ(rank.model.blocks[0].up.tensor.sizes(), (std::vector<int64_t>{kHidden, kWidth}));
    for (const ShardedParameter& parameter : rank.engine.parameters()) EXPECT_EQ(parameter.begin, 0);
    rank.engine.zero_grad();
    for (const ShardedParameter& parameter : rank.engine.parameters()) {
      if (parameter.trainable) {
        EXPECT_EQ(bytes_of(parameter.grad), 0u) << parameter.name;
      }
    }
  });
}

TEST(FullyShard, MemoryIsFreedAfterUse) {
  run_threads(2, [](World& world) {
    Rank rank(world);
    at::Tensor leaf;
    rank.engine.unshard();
    leaf = rank.model.blocks[0].up.tensor;
    EXPECT_EQ(leaf.sizes(), (std::vector<int64_t>{kHidden, kWidth}));
    rank.engine.reshard();
    EXPECT_EQ(bytes_of(leaf), 0u);
    EXPECT_EQ(rank.model.blocks[0].up.tensor.dim(), 1);
    const at::Tensor loss = rank.model(batch_of(0, 0, 4).tokens).sum();
    EXPECT_EQ(bytes_of(leaf), 0u) << "after forward";
    loss.backward();
    EXPECT_EQ(bytes_of(leaf), 0u) << "after backward";
    rank.engine.finish_backward();
    for (const ShardedParameter& parameter : rank.engine.parameters()) {
      EXPECT_EQ(parameter.data.dim(), 1);
      if (parameter.trainable) {
        EXPECT_GT(bytes_of(parameter.grad), 0u) << parameter.name;
      }
    }
    EXPECT_FALSE(leaf.grad().defined());
    rank.engine.zero_grad();
    for (const ShardedParameter& parameter : rank.engine.parameters()) {
      if (parameter.trainable) {
        EXPECT_EQ(bytes_of(parameter.grad), 0u) << parameter.name;
      }
    }
  });
}

// Evaluation sees the weights of now, before and after a change, with and without a forward that had no backward.
TEST(FullyShard, NoStaleWeights) {
  TinyModel reference;
  materialize(reference, {.dtype = at::kDouble, .seed = 7});
  const at::Tensor tokens = batch_of(0, 0, 4).tokens;
  at::NoGradGuard no_grad;
  const at::Tensor before = reference(tokens).clone();
  for (const auto& [name, slot] : reference.named_parameters()) slot->tensor.mul_(0.5);
  const at::Tensor after = reference(tokens);
  for (const bool reshard : {true, false}) {
    for (const bool with_graph : {true, false}) {
      run_threads(3, [&](World& world) {
        Rank rank(world, {.options = {.reshard_after_forward = reshard}});
        at::AutoGradMode mode(with_graph);
        EXPECT_LT(difference({{"", rank.model(tokens).detach()}}, {{"", before}}), 1e-12);
        for (const ShardedParameter& parameter : rank.engine.parameters()) parameter.data.mul_(0.5);
        EXPECT_LT(difference({{"", rank.model(tokens).detach()}}, {{"", after}}), 1e-12);
        at::NoGradGuard evaluation;
        EXPECT_LT(difference({{"", rank.model(tokens)}}, {{"", after}}), 1e-12);
        EXPECT_EQ(rank.model.temperature.tensor.dim(), 1) << "the root is sharded after evaluation";
        EXPECT_EQ(rank.model.blocks[0].up.tensor.dim(), 1);
      });
    }
  }
}

TEST(FullyShard, EvaluationBetweenForwardAndBackward) {
  const std::vector<Record> want = plain({.mesh = {2}});
  run_threads(2, [&](World& world) {
    Rank rank(world);
    const Batch batch = batch_of(0, world.rank() * 12, 12);
    const at::Tensor num_valid = batch.labels.ne(-100).sum().to(at::kDouble);
    world.group().all_reduce(num_valid).wait();
    const at::Tensor loss = sum_loss(rank.model(batch.tokens), batch.labels) / num_valid.item<double>();
    {
      at::NoGradGuard no_grad;
      rank.model(batch.tokens);
    }
    loss.backward();
    rank.engine.finish_backward();
    EXPECT_LT(difference(whole(rank.mesh, rank.engine.parameters(), true), want[0].grads), 1e-9);
  });
}

TEST(FullyShard, SeveralForwardsBeforeTheirBackwards) {
  run_threads(2, [](World& world) {
    Rank rank(world);
    const auto loss = [&](int step) { return rank.model(batch_of(step, world.rank() * 4, 4).tokens).square().sum(); };
    const auto gradients = [&] { return whole(rank.mesh, rank.engine.parameters(), true); };
    rank.engine.zero_grad();
    for (const int step : {0, 1}) loss(step).backward();
    rank.engine.finish_backward();
    const Named want = gradients();
    rank.engine.zero_grad();
    {
      const at::Tensor first = loss(0), second = loss(1);
      first.backward();
      second.backward();
    }
    rank.engine.finish_backward();
    EXPECT_LT(difference(gradients(), want), 1e-12);
    rank.engine.zero_grad();
    (loss(0) + loss(1)).backward();
    rank.engine.finish_backward();
    EXPECT_LT(difference(gradients(), want), 1e-12) << "one backward through two forwards";
  });
}

TEST(FullyShard, TwoBackwardsOfOneGraphGiveTwiceTheGradient) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2}, {1, 2}, {2, 1}, {1}}) {
    run_threads(static_cast<int>(shape.size() == 2 ? shape[0] * shape[1] : shape[0]), [&](World& world) {
      Rank rank(world, {}, shape);
      const auto gradients = [&](int num_backwards) {
        rank.engine.zero_grad();
        const at::Tensor loss = rank.model(batch_of(0, world.rank() * 4, 4).tokens).square().sum();
        for (int i = 0; i < num_backwards; ++i) loss.backward({}, /*keep_graph=*/true);
        rank.engine.finish_backward();
        return whole(rank.mesh, rank.engine.parameters(), true);
      };
      Named once = gradients(1);
      for (auto& [name, gradient] : once) gradient.mul_(2);
      EXPECT_LT(difference(gradients(2), once), 1e-12);
    });
  }
}

// Rank 1 has no backward-relevant sample at all: its gradients are zeros, and it takes part.
TEST(FullyShard, AllLabelsIgnored) {
  run_threads(2, [](World& world) {
    Rank rank(world);
    const Batch batch = batch_of(0, kFirstWithoutLabels, 2);
    rank.engine.zero_grad();
    const at::Tensor loss = sum_loss(rank.model(batch.tokens), batch.labels);
    loss.backward();
    rank.engine.finish_backward();
    EXPECT_EQ(loss.item<double>(), 0);
    EXPECT_EQ(rank.engine.gradient_norm(), 0);
  });
}

TEST(FullyShard, FinishWithoutBackwardGivesZeroGradients) {
  run_threads(2, [](World& world) {
    Rank rank(world);
    rank.engine.finish_backward();
    EXPECT_EQ(rank.engine.gradient_norm(), 0);
  });
}

TEST(FullyShard, ResidentWeightsServeForwardsWithoutGathers) {
  TinyModel reference;
  materialize(reference, {.dtype = at::kDouble, .seed = 7});
  const at::Tensor tokens = batch_of(0, 0, 4).tokens;
  run_threads(3, [&](World& world) {
    Rank rank(world);
    const UnshardScope scope(rank.engine);
    const int64_t num_gathers = rank.engine.statistics().num_gathers;
    for (const auto& [name, slot] : rank.model.named_parameters()) EXPECT_EQ(slot->tensor.sizes(), slot->sizes) << name;
    at::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) EXPECT_LT(difference({{"", rank.model(tokens)}}, {{"", reference(tokens)}}), 1e-12);
    EXPECT_EQ(rank.engine.statistics().num_gathers, num_gathers);
  });
}

TEST(FullyShard, StateDictCoversEveryElementOnceAndAliases) {
  for (const int num_ranks : {1, 3, 8}) {
    std::vector<StateDict> states(num_ranks);
    std::vector<Named> values(num_ranks);
    run_threads(num_ranks, [&](World& world) {
      Rank rank(world);
      for (StateEntry& entry : rank.engine.state_dict()) entry.local.fill_(0.25);
      values[world.rank()] = whole(rank.mesh, rank.engine.parameters(), false);
      states[world.rank()] = rank.engine.state_dict();
    });
    for (const auto& [name, value] : values[0]) EXPECT_TRUE(value.eq(0.25).all().item<bool>()) << name;
    for (size_t i = 0; i < states[0].size(); ++i) {
      int64_t numel = 1, covered = 0;
      for (const int64_t size : states[0][i].sizes) numel *= size;
      for (const StateDict& state : states) {
        EXPECT_EQ(state[i].name, states[0][i].name);
        int64_t boxes = 0;
        for (const Box& box : state[i].boxes) boxes += box.numel();
        EXPECT_EQ(boxes, state[i].local.numel());
        covered += boxes;
      }
      EXPECT_EQ(covered, numel) << states[0][i].name;
    }
  }
}

TEST(FullyShard, ParametersDescribeTheModel) {
  run_threads(2, [](World& world) {
    Rank rank(world);
    std::map<std::string, ShardedParameter> by_name;
    for (const ShardedParameter& parameter : rank.engine.parameters()) by_name[parameter.name] = parameter;
    EXPECT_EQ(by_name.size(), rank.model.named_parameters().size());
    EXPECT_FALSE(by_name.contains("head.weight")) << "tied: listed once";
    EXPECT_TRUE(by_name.at("embed.weight").decays);
    EXPECT_FALSE(by_name.at("blocks.0.gain").decays);
    EXPECT_FALSE(by_name.at("blocks.0.gate").trainable);
    EXPECT_FALSE(by_name.at("blocks.0.gate").grad.defined());
    EXPECT_EQ(by_name.at("blocks.2.up").sizes, (std::vector<int64_t>{kHidden, kWidth}));
  });
}

// All ranks leave at the same place; after reset() the engine trains as if nothing had happened.
TEST(FullyShard, UsableAfterAnException) {
  const Case run{.mesh = {2, 2}};
  const std::vector<Record> want = plain(run);
  for (const TinyModel::Fail where : {TinyModel::Fail::kForward, TinyModel::Fail::kBackward}) {
    run_threads(4, [&](World& world) {
      Rank rank(world, run, run.mesh);
      rank.model.fail = where;
      EXPECT_THAT(message_of<RuntimeError>([&] { backward_all(world, run, rank.model, rank.engine, 0); }), HasSubstr("injected"));
      if (where == TinyModel::Fail::kBackward) {
        rank.model.fail = TinyModel::Fail::kNever;
        EXPECT_THAT(message_of<RuntimeError>([&] { rank.model(batch_of(0, 0, 1).tokens); }), HasSubstr("call reset()"));
      }
      rank.engine.reset();
      rank.model.fail = TinyModel::Fail::kNever;
      const std::vector<Record> got = sharded(world, rank.mesh, run, rank.model, rank.engine);
      for (int step = 0; step < kNumSteps; ++step) {
        EXPECT_LT(difference(got[step].grads, want[step].grads), 1e-9);
        EXPECT_LT(difference(got[step].weights, want[step].weights), 1e-9);
      }
    });
  }
}

TEST(FullyShard, AFailingRankEndsAll) {
  for (const TinyModel::Fail where : {TinyModel::Fail::kForward, TinyModel::Fail::kBackward}) {
    const std::string message = message_of<std::exception>([&] {
      run_threads(3,
                  [&](World& world) {
                    Rank rank(world);
                    if (world.rank() == 1) rank.model.fail = where;
                    backward_all(world, rank.run, rank.model, rank.engine, 0);
                  },
                  {.timeout = std::chrono::seconds(20)});
    });
    EXPECT_THAT(message, HasSubstr("rank 1: "));
    EXPECT_THAT(message, HasSubstr("injected"));
  }
}

TEST(FullyShard, TimeOutNamesTheUnitThatTheMissingRankWasAt) {
  const std::string message = message_of<CollectiveError>([&] {
    run_threads(2,
                [&](World& world) {
                  Rank rank(world);
                  note_step(7);
                  if (world.rank() == 1) rank.model.blocks[0].add_hook(std::make_shared<Sleeper>());
                  backward_all(world, rank.run, rank.model, rank.engine, 0);
                },
                {.timeout = std::chrono::milliseconds(300)});
  });
  // Rank 1 sleeps in block 0, whose weights or the next ones it asked for last.
  EXPECT_THAT(message, testing::ContainsRegex("missing: 1 last did all_gather #[0-9]+ at step 7, blocks\\.[01]"));
}

TEST(FullyShard, HigherDerivativesAreRejected) {
  run_threads(1, [](World& world) {
    Rank rank(world);
    const std::string message =
        message_of<RuntimeError>([&] { rank.model(batch_of(0, 0, 2).tokens).square().sum().backward({}, true, true); });
    EXPECT_THAT(message, HasSubstr("create_graph"));
    rank.engine.reset();
  });
}

struct Leaky : ModuleOf<Leaky> {  // its second result leaves by a member
  using ModuleOf::ModuleOf;
  at::Tensor forward(const at::Tensor& x) {
    hidden = x * weight.tensor;
    return x * 2;
  }
  Parameter weight{*this, "weight", {3}, Initializer::ones()};
  at::Tensor hidden;
};
struct LeakyRoot : ModuleOf<LeakyRoot> {
  using ModuleOf::ModuleOf;
  at::Tensor forward(const at::Tensor& x) { return leaky(x * scale.tensor) + leaky.hidden; }
  Parameter scale{*this, "scale", {3}, Initializer::ones()};
  Leaky leaky{child("leaky")};
};

TEST(FullyShard, AResultThatLeavesByASideChannelIsAnError) {
  run_threads(1, [](World& world) {
    LeakyRoot model(Module::root());
    const std::vector<Module*> units{&model.leaky};
    FullyShard engine(model, units, mesh_of(world, {1}));
    engine.materialize({});
    // The gradient of `weight` comes through `hidden` alone, before or without that of the return value.
    const std::string message = message_of<RuntimeError>([&] {
      model(at::full({3}, 1.0, at::kFloat));
      model.leaky.hidden.sum().backward();
    });
    EXPECT_THAT(message, HasSubstr("gradient of leaky.weight outside the backward of its unit 'leaky'"));
    engine.reset();
  });
}

TEST(FullyShard, BadInput) {
  run_threads(1, [](World& world) {
    const DeviceMesh mesh = mesh_of(world, {1});
    const DeviceMesh cube(world.group(), {1, 1, 1}, {"a", "b", "c"});
    TinyModel model, other;
    std::vector<Module*> units = model.units();
    const auto make = [&](const DeviceMesh& chosen) { FullyShard engine(model, units, chosen); };
    EXPECT_THAT(message_of<LayoutError>([&] { make(cube); }), HasSubstr("(shard) or (replicate, shard)"));
    units.push_back(units[0]);
    EXPECT_THAT(message_of<LayoutError>([&] { make(mesh); }), HasSubstr("unit 'embed' is listed twice"));
    units.back() = &other.head;
    EXPECT_THAT(message_of<LayoutError>([&] { make(mesh); }), HasSubstr("unit 5 ('head') is not below the root"));
    units.pop_back();
    {
      FullyShard engine(model, units, mesh);
      EXPECT_THAT(message_of<LayoutError>([&] { model(batch_of(0, 0, 1).tokens); }), HasSubstr("call materialize() first"));
      EXPECT_THAT(message_of<LayoutError>([&] { engine.parameters(); }), HasSubstr("call materialize() first"));
      EXPECT_THAT(message_of<LayoutError>([&] { engine.materialize({.dtype = at::kLong}); }), HasSubstr("can't be of type Long"));
    }
    materialize(other, {});
    units = other.units();
    EXPECT_THAT(message_of<LayoutError>([&] { FullyShard engine(other, units, mesh); }), HasSubstr("temperature holds data already"));
  });
}

TEST(FullyShard, Bfloat16) {
  run_threads(2, [](World& world) {
    TinyModel model;
    FullyShard engine(model, model.units(), mesh_of(world, {2}));
    engine.materialize({.dtype = at::kBFloat16, .seed = 7});
    model(batch_of(0, world.rank() * 4, 4).tokens).square().sum().backward();
    engine.finish_backward();
    EXPECT_GT(engine.gradient_norm(), 0);
    for (const ShardedParameter& parameter : engine.parameters()) EXPECT_EQ(parameter.data.scalar_type(), at::kBFloat16);
  });
}

TEST(FullyShard, TheModelWorksOnAfterTheEngineIsGone) {
  run_threads(1, [](World& world) {
    TinyModel model;
    {
      FullyShard engine(model, model.units(), mesh_of(world, {1}));
      engine.materialize({.dtype = at::kDouble, .seed = 7});
    }
    model(batch_of(0, 0, 2).tokens).sum().backward();
    EXPECT_TRUE(model.blocks[0].up.tensor.grad().defined());
  });
}

}  // namespace
}  // namespace hyper_parallel::testing_support
