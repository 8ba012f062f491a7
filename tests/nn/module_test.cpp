// SPDX-License-Identifier: Apache-2.0
// The tree, slots, ties, hooks and their order, and materialize().
#include "hyper_parallel/nn/module.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/philox.h"
#include "hyper_parallel/nn/functional.h"
#include "hyper_parallel/nn/layers.h"

namespace hyper_parallel {
namespace {

using testing::ElementsAre;
using testing::Pair;

struct Block : ModuleOf<Block> {
  Linear up{child("up"), {.in = 4, .out = 6, .bias = true}};
  Linear down{child("down"), {.in = 6, .out = 4}};
  using ModuleOf::ModuleOf;
  at::Tensor forward(const at::Tensor& x) { return down(silu(up(x))); }
};

struct Head : ModuleOf<Head> {
  Head(Slot slot, Parameter& shared) : ModuleOf(std::move(slot)), shared(shared) { tie("weight", shared); }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(shared.tensor.t()); }
  Parameter& shared;
};

struct Net : ModuleOf<Net> {
  Embedding embed{child("embed"), {.num = 5, .dim = 4}};
  Block first{child("blocks.0")}, second{child("blocks.1")};
  Head head{child("head"), embed.weight};
  Net() : ModuleOf(root()) {}
  at::Tensor forward(const at::Tensor& ids) { return head(second(first(embed(ids)))); }
};

struct Recorder : ModuleHook {
  Recorder(std::vector<std::string>& log, std::string tag) : log(log), tag(std::move(tag)) {}
  void pre_forward(Module& module, TensorRefs arguments) override { note("pre ", module, arguments.size()); }
  void post_forward(Module& module, TensorRefs results) override { note("post ", module, results.size()); }
  void pre_backward(Module& module) override { note("pre_backward ", module, 0); }
  void post_backward(Module& module) override { note("post_backward ", module, 0); }
  bool sees_backward() const override { return true; }
  void note(const char* event, Module& module, size_t tensors) {
    log.push_back(tag + event + module.name + (tensors ? " " + std::to_string(tensors) : ""));
  }
  std::vector<std::string>& log;
  std::string tag;
};

TEST(ModuleTest, WalksInConstructionOrderWithFullNames) {
  Net net;
  std::vector<std::string> names;
  for (auto& [name, slot] : net.named_parameters()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("embed.weight", "blocks.0.up.weight", "blocks.0.up.bias", "blocks.0.down.weight", "blocks.1.up.weight",
                                 "blocks.1.up.bias", "blocks.1.down.weight"));
  EXPECT_THAT(net.tied_names(), ElementsAre(Pair("head.weight", "embed.weight")));
  std::vector<std::string> found;
  for (auto& [name, module] : net.find("blocks.*")) found.push_back(name);
  EXPECT_THAT(found, ElementsAre("blocks.0", "blocks.1"));
  EXPECT_TRUE(net.find("no.such").empty());
  EXPECT_FALSE(net.first.up.bias->decays);
  EXPECT_TRUE(net.first.up.weight.decays);
}

TEST(ModuleTest, TiedSlotGetsBothGradients) {
  Net net;
  materialize(net, {.dtype = at::kDouble, .seed = 3});
  const at::Tensor ids = at::ones({1, 2}, at::kLong);
  net(ids).sum().backward();
  // Written out by hand: embedding rows and the head read the same leaf.
  at::Tensor leaf = net.embed.weight.tensor.detach().clone().set_requires_grad(true);
  net.second(net.first(leaf.index_select(0, ids.flatten()).view({1, 2, 4}))).matmul(leaf.t()).sum().backward();
  EXPECT_TRUE(net.embed.weight.tensor.grad().allclose(leaf.grad(), 1e-12, 1e-14));
}

TEST(ModuleTest, HooksFireInOrder) {
  Net net;
  materialize(net, {.dtype = at::kDouble, .seed = 3});
  std::vector<std::string> log;
  net.first.add_hook(std::make_shared<Recorder>(log, "a "));
  net.first.add_hook(std::make_shared<Recorder>(log, "b "));
  net.second.add_hook(std::make_shared<Recorder>(log, ""));
  at::Tensor loss = net(at::ones({1, 2}, at::kLong)).sum();
  EXPECT_THAT(log, ElementsAre("a pre blocks.0 1", "b pre blocks.0 1", "b post blocks.0 1", "a post blocks.0 1", "pre blocks.1 1",
                               "post blocks.1 1"));
  EXPECT_TRUE(net.first.arguments_watched());
  log.clear();
  loss.backward({}, /*retain_graph=*/true);
  const auto expected = ElementsAre("pre_backward blocks.1", "a pre_backward blocks.0", "b pre_backward blocks.0", "post_backward blocks.1",
                                    "b post_backward blocks.0", "a post_backward blocks.0");
  EXPECT_THAT(log, expected);
  log.clear();
  loss.backward();
  EXPECT_THAT(log, expected) << "once more for the second backward";
}

TEST(ModuleTest, LeafArgumentBringsNoPostBackward) {
  Net net;
  materialize(net, {.dtype = at::kDouble, .seed = 3});
  std::vector<std::string> log;
  net.first.add_hook(std::make_shared<Recorder>(log, ""));
  at::Tensor leaf = at::ones({1, 4}, at::kDouble).set_requires_grad(true);
  net.first(leaf).sum().backward();
  EXPECT_THAT(log, ElementsAre("pre blocks.0 1", "post blocks.0 1", "pre_backward blocks.0"));
  EXPECT_FALSE(net.first.arguments_watched());
  net.first.clear_hooks();
  log.clear();
  net.first(leaf);
  EXPECT_TRUE(log.empty());
}

struct Doubler : ModuleHook {
  void pre_forward(Module&, TensorRefs arguments) override { *arguments[0] = arguments[0]->mul(2); }
  void post_forward(Module&, TensorRefs results) override { *results[0] = results[0]->add(1); }
};

TEST(ModuleTest, HooksReplaceTensors) {
  Net net;
  materialize(net, {.dtype = at::kDouble, .seed = 3});
  const at::Tensor x = at::randn({3, 4}, at::kDouble), want = net.first(x.mul(2)).add(1);
  net.first.add_hook(std::make_shared<Doubler>());
  EXPECT_TRUE(net.first(x).equal(want));
}

TEST(MaterializeTest, WholeAndPiecewiseAreBitIdentical) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& initializer : {Initializer::normal(0.3, 0.1), Initializer::uniform(-1, 2), Initializer::ones()}) {
      const at::Tensor whole = at::ones({103}, dtype), parts = at::ones({103}, dtype);
      fill_initial(whole, initializer, 7, "a.weight", 0);
      for (int64_t begin : {0, 40, 41, 103}) {
        const int64_t end = begin == 0 ? 40 : begin == 40 ? 41 : 103;
        fill_initial(parts.narrow(0, begin, end - begin), initializer, 7, "a.weight", begin);
      }
      EXPECT_TRUE(whole.equal(parts));
    }
  }
  const at::Tensor a = at::ones({64}), b = at::ones({64}), c = at::ones({64});
  fill_initial(a, Initializer::normal(1), 7, "a.weight", 0);
  fill_initial(b, Initializer::normal(1), 8, "a.weight", 0);
  fill_initial(c, Initializer::normal(1), 7, "b.weight", 0);
  EXPECT_FALSE(a.equal(b));
  EXPECT_FALSE(a.equal(c));
}

TEST(MaterializeTest, NormalsAreThoseOfPhilox) {
  const at::Tensor got = at::ones({5000}, at::kDouble);
  for (const uint64_t begin : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 32) - 100}) {
    fill_initial(got, Initializer::normal(1), 17, "w", static_cast<int64_t>(begin));
    const Philox stream(17, "w");
    double worst = 0;
    for (int64_t i = 0; i < 5000; ++i)
      worst = std::max(worst, std::abs(got[i].item<double>() - stream.normal(begin + static_cast<uint64_t>(i))));
    EXPECT_LT(worst, 1e-14);
  }
}

TEST(MaterializeTest, HalfValuesAreTheDoublesRoundedOnce) {
  const at::Tensor exact = at::ones({4096}, at::kDouble), half = at::ones({4096}, at::kBFloat16), single = at::ones({4096}, at::kFloat);
  for (const auto& piece : {exact, half, single}) fill_initial(piece, Initializer::normal(0.02), 1, "w", 0);
  EXPECT_TRUE(single.equal(exact.to(at::kFloat)));
  // Nearest: the error is at most half a unit of the last of 8 significant bits.
  EXPECT_LE((half.to(at::kDouble).sub(exact).abs().div(exact.abs())).max().item<double>(), 1.0 / 256 * (1 + 1e-12));
}

TEST(MaterializeTest, NormalMomentsAndSlots) {
  Linear big(Module::root(), {.in = 400, .out = 500, .bias = true, .initializer = Initializer::normal(0.02)});
  materialize(big, {.dtype = at::kFloat, .seed = 11});
  const at::Tensor w = big.weight.tensor.to(at::kDouble);
  const double n = 200000, mean = w.mean().item<double>(), deviation = w.pow(2).mean().sqrt().item<double>();
  EXPECT_NEAR(mean, 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(deviation, 0.02, 5 * 0.02 / std::sqrt(2 * n));
  EXPECT_NEAR(w.abs().gt(0.04).to(at::kDouble).mean().item<double>(), 0.0455, 5 * std::sqrt(0.0455 / n)) << "two-sigma tail";
  EXPECT_TRUE(big.bias->tensor.eq(0).all().item<bool>());
  EXPECT_TRUE(big.weight.tensor.requires_grad());
  const at::Tensor before = big.weight.tensor;
  materialize(big, {.dtype = at::kFloat, .seed = 12});
  EXPECT_TRUE(big.weight.tensor.is_same(before)) << "filled slots are left alone";
}

TEST(MaterializeTest, FrozenSlotTakesNoGradient) {
  Linear layer(Module::root(), {.in = 2, .out = 3});
  layer.weight.trainable = false;
  materialize(layer, {});
  EXPECT_FALSE(layer.weight.tensor.requires_grad());
}

}  // namespace
}  // namespace hyper_parallel
