// SPDX-License-Identifier: Apache-2.0
// The decoder's names, units, ties, loss and initial weights. Its numbers are checked against transformers in tests/parity.
#include "hyper_parallel/models/decoder/model.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/models/causal_lm.h"

namespace hyper_parallel {
namespace {

nlohmann::json config(bool tied) {
  return {{"vocab_size", 57},         {"hidden_size", 24},        {"intermediate_size", 40}, {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"head_dim", 8},           {"tie_word_embeddings", tied}};
}

std::unique_ptr<CausalLm> tiny(const std::string& type, bool tied, at::ScalarType dtype = at::kDouble) {
  auto model = make_model(type, config(tied));
  materialize(model->module(), {.dtype = dtype, .seed = 2});
  return model;
}

std::vector<std::string> names(CausalLm& model) {
  std::vector<std::string> out;
  for (auto& [name, slot] : model.module().named_parameters()) out.push_back(name);
  return out;
}

TEST(DecoderTest, NamesAreHuggingFaces) {
  auto qwen3 = tiny("qwen3", false), llama = tiny("llama", true);
  EXPECT_THAT(names(*qwen3), testing::IsSupersetOf({"model.embed_tokens.weight", "model.layers.1.self_attn.q_norm.weight",
                                                    "model.layers.0.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"}));
  EXPECT_EQ(names(*qwen3).size(), 3u + 2 * 11);
  EXPECT_EQ(names(*llama).size(), 2u + 2 * 9);
  EXPECT_THAT(llama->module().tied_names(), testing::ElementsAre(testing::Pair("lm_head.weight", "model.embed_tokens.weight")));
  const auto units = qwen3->shard_units();
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[1]->name, "layers.1");
}

TEST(DecoderTest, LossIsCrossEntropyOfTheLogits) {
  for (const bool tied : {false, true}) {
    auto model = tiny("qwen3", tied), twin = tiny("qwen3", tied);
    at::manual_seed(4);
    const at::Tensor ids = at::randint(57, {2, 9}, at::kLong), labels = at::randint(57, {2, 9}, at::kLong);
    labels[0].fill_(kIgnoreLabel);
    const LossSum loss = model->loss_sum(ids, labels);
    EXPECT_EQ(loss.count, 9);
    const at::Tensor want = at::cross_entropy_loss(twin->logits(ids).flatten(0, 1), labels.flatten(), {}, at::Reduction::Sum, kIgnoreLabel);
    EXPECT_NEAR(loss.sum.item<double>(), want.item<double>(), 1e-9 * want.item<double>());
    loss.sum.backward();
    want.backward();
    auto mine = model->module().named_parameters(), theirs = twin->module().named_parameters();
    for (size_t i = 0; i < mine.size(); ++i)
      EXPECT_TRUE(mine[i].second->tensor.grad().allclose(theirs[i].second->tensor.grad(), 1e-9, 1e-12)) << mine[i].first;
  }
}

TEST(DecoderTest, AllIgnoredGivesZeroGradients) {
  auto model = tiny("llama", true);
  const at::Tensor ids = at::ones({2, 5}, at::kLong);
  const LossSum loss = model->loss_sum(ids, at::full_like(ids, kIgnoreLabel));
  loss.sum.backward();
  EXPECT_EQ(loss.count, 0);
  EXPECT_EQ(loss.sum.item<double>(), 0);
  for (auto& [name, slot] : model->module().named_parameters()) EXPECT_TRUE(slot->tensor.grad().eq(0).all().item<bool>()) << name;
}

struct RootHook : ModuleHook {
  void pre_forward(Module&, TensorRefs arguments) override { ++calls, num_arguments = arguments.size(); }
  void post_forward(Module&, TensorRefs results) override { gradient = results[0]->requires_grad(); }
  void pre_backward(Module&) override { ++backwards; }
  bool sees_backward() const override { return true; }
  int calls = 0, backwards = 0;
  size_t num_arguments = 0;
  bool gradient = false;
};

TEST(DecoderTest, LossLeavesThroughTheRootsCall) {
  auto model = tiny("qwen3", true);
  auto root = std::make_shared<RootHook>(), unit = std::make_shared<RootHook>();
  model->module().add_hook(root);
  for (Module* layer : model->shard_units()) layer->add_hook(unit);
  const at::Tensor ids = at::ones({1, 4}, at::kLong);
  model->loss_sum(ids, ids).sum.backward();
  EXPECT_EQ(root->calls, 1);
  EXPECT_EQ(root->backwards, 1);
  EXPECT_TRUE(root->gradient);
  EXPECT_EQ(unit->calls, 2);
  EXPECT_EQ(unit->backwards, 2);
  KvCache cache = model->make_cache(1, 8);
  model->prefill(ids, at::full({1}, 4, at::kLong), cache);
  model->decode(at::ones({1}, at::kLong), cache);
  EXPECT_EQ(root->calls, 3) << "decoding goes through the hooks too";
}

TEST(DecoderTest, InitialWeights) {
  nlohmann::json wide = config(false);
  wide.update({{"hidden_size", 256}, {"initializer_range", 0.05}, {"attention_bias", true}, {"mlp_bias", true}});
  auto model = make_model("llama", wide);
  materialize(model->module(), {.dtype = at::kFloat, .seed = 2});
  for (auto& [name, slot] : model->module().named_parameters()) {
    const at::Tensor w = slot->tensor.to(at::kDouble);
    const bool is_norm = name.find("norm") != std::string::npos, is_bias = name.ends_with("bias");
    EXPECT_EQ(slot->decays, !is_norm && !is_bias) << name;
    if (is_norm) {
      EXPECT_TRUE(w.eq(1).all().item<bool>()) << name;
    } else if (is_bias) {
      EXPECT_TRUE(w.eq(0).all().item<bool>()) << name;
    } else {
      EXPECT_NEAR(w.pow(2).mean().sqrt().item<double>(), 0.05, 5 * 0.05 / std::sqrt(2.0 * double(w.numel()))) << name;
    }
  }
}

TEST(DecoderTest, BadInputIsNamed) {
  auto model = tiny("llama", true);
  EXPECT_THROW(model->logits(at::ones({2, 3})), DataError);
  EXPECT_THROW(model->logits(at::ones({3}, at::kLong)), DataError);
  EXPECT_THROW(model->logits(at::full({1, 2}, 57, at::kLong)), DataError);
  EXPECT_THROW(model->loss_sum(at::ones({1, 2}, at::kLong), at::ones({1, 3}, at::kLong)), DataError);
  auto meta = make_model("llama", config(true));
  EXPECT_THROW(meta->logits(at::ones({1, 2}, at::kLong)), InternalError);
}

TEST(DecoderTest, HalfPrecisionRuns) {
  auto half = tiny("qwen3", true, at::kBFloat16), single = tiny("qwen3", true, at::kFloat);
  const at::Tensor ids = at::arange(12, at::kLong).view({2, 6});
  const LossSum a = half->loss_sum(ids, ids), b = single->loss_sum(ids, ids);
  a.sum.backward();
  EXPECT_NEAR(a.sum.item<double>(), b.sum.item<double>(), 0.02 * b.sum.item<double>());
  EXPECT_TRUE(half->module().named_parameters()[0].second->tensor.grad().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace hyper_parallel
