// SPDX-License-Identifier: Apache-2.0
// Decoding with the cache against full forwards without it.
#include "hyper_parallel/generate/generate.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

using Prompts = std::vector<std::vector<int64_t>>;
using Reason = Generated::Reason;

std::unique_ptr<CausalLm> tiny(const std::string& type, at::ScalarType dtype = at::kDouble) {
  auto model = make_model(type, {{"vocab_size", 57},
                                 {"hidden_size", 24},
                                 {"intermediate_size", 40},
                                 {"num_hidden_layers", 3},
                                 {"num_attention_heads", 4},
                                 {"num_key_value_heads", 2},
                                 {"head_dim", 8},
                                 {"initializer_range", 0.3},
                                 {"max_position_embeddings", 64}});
  materialize(model->module(), {.dtype = dtype, .seed = 5});
  return model;
}

at::Tensor row_of(const std::vector<int64_t>& tokens) { return at::tensor(tokens, at::kLong).unsqueeze(0); }

// The last logits of each prefix by a full forward.
std::vector<int64_t> uncached_greedy(CausalLm& model, std::vector<int64_t> tokens, int64_t count) {
  at::NoGradGuard no_grad;
  std::vector<int64_t> made;
  for (int64_t i = 0; i < count; ++i) {
    made.push_back(model.logits(row_of(tokens)).select(1, -1).argmax().item<int64_t>());
    tokens.push_back(made.back());
  }
  return made;
}

class GenerateTest : public testing::TestWithParam<const char*> {};

TEST_P(GenerateTest, CachedLogitsEqualFullForward) {
  auto model = tiny(GetParam());
  at::manual_seed(1);
  const at::Tensor ids = at::randint(57, {3, 12}, at::kLong), counts = at::tensor({5, 1, 8}, at::kLong);
  KvCache cache = model->make_cache(3, 20);
  at::Tensor got = model->prefill(ids, counts, cache);
  at::NoGradGuard no_grad;
  for (int64_t step = 0; step < 5; ++step) {
    at::Tensor next = at::empty({3}, at::kLong);
    for (int64_t row = 0; row < 3; ++row) {
      const int64_t length = counts[row].item<int64_t>() + step;
      // Beyond its prompt a row goes on with its own columns of ids.
      const at::Tensor want = model->logits(ids[row].narrow(0, 0, length).unsqueeze(0)).select(1, -1)[0];
      EXPECT_LE((got[row] - want).abs().max().item<double>(), 1e-9 * want.abs().max().item<double>()) << "row " << row << " step " << step;
      next[row] = length < 12 ? ids[row][length] : at::zeros({}, at::kLong);
    }
    if (step < 4) got = model->decode(next, cache);
  }
}

TEST_P(GenerateTest, GreedyEqualsUncachedForPromptsOfDifferentLengths) {
  auto model = tiny(GetParam());
  const Prompts prompts{{3, 1, 4, 1, 5}, {9}, {2, 6}};
  const auto results = generate(*model, prompts, {.max_new_tokens = 9});
  for (size_t row = 0; row < prompts.size(); ++row) {
    EXPECT_EQ(results[row].tokens, uncached_greedy(*model, prompts[row], 9)) << "row " << row;
    EXPECT_EQ(results[row].reason, Reason::kLength);
    EXPECT_EQ(results[row].tokens, generate(*model, {prompts[row]}, {.max_new_tokens = 9})[0].tokens) << "alone";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GenerateTest, testing::Values("llama", "qwen3"));

TEST(GenerateEndTest, StopTokensAndCallbackEndRows) {
  auto model = tiny("qwen3");
  const Prompts prompts{{3, 1, 4}, {9, 9}};
  const auto free = generate(*model, prompts, {.max_new_tokens = 8});
  const int64_t stop = free[0].tokens[2];
  const size_t first = static_cast<size_t>(std::find(free[0].tokens.begin(), free[0].tokens.end(), stop) - free[0].tokens.begin());
  std::vector<std::pair<size_t, int64_t>> seen;
  const auto stopped =
      generate(*model, prompts, {.max_new_tokens = 8, .stop_tokens = {stop}, .on_token = [&](size_t row, int64_t token) {
                                   seen.emplace_back(row, token);
                                   return row == 0 || std::count_if(seen.begin(), seen.end(), [](auto& s) { return s.first == 1; }) < 4;
                                 }});
  EXPECT_EQ(stopped[0].reason, Reason::kStopToken);
  EXPECT_EQ(stopped[0].tokens, std::vector<int64_t>(free[0].tokens.begin(), free[0].tokens.begin() + static_cast<int64_t>(first) + 1));
  ASSERT_LE(stopped[1].tokens.size(), 4u);
  EXPECT_EQ(stopped[1].tokens,
            std::vector<int64_t>(free[1].tokens.begin(), free[1].tokens.begin() + static_cast<int64_t>(stopped[1].tokens.size())));
  EXPECT_NE(stopped[1].reason, Reason::kLength);
  EXPECT_EQ(seen.size(), stopped[0].tokens.size() + stopped[1].tokens.size());
}

TEST(GenerateEndTest, SampledOutputRepeats) {
  auto model = tiny("llama", at::kFloat);
  const GenerateOptions options{.max_new_tokens = 20, .sampling = {.temperature = 1, .top_k = 20, .top_p = 0.9, .seed = 42}};
  const auto a = generate(*model, {{1, 2}, {3}}, options), b = generate(*model, {{1, 2}, {3}}, options);
  EXPECT_EQ(a[0].tokens, b[0].tokens);
  EXPECT_EQ(a[1].tokens, b[1].tokens);
  GenerateOptions reseeded = options;
  reseeded.sampling.seed = 43;
  EXPECT_NE(generate(*model, {{1, 2}, {3}}, reseeded)[0].tokens, a[0].tokens);
}

TEST(GenerateEndTest, BadInputIsNamed) {
  auto model = tiny("llama", at::kFloat);
  EXPECT_THROW(generate(*model, {}, {}), DataError);
  EXPECT_THROW(generate(*model, {{1}, {}}, {}), DataError);
  EXPECT_THROW(generate(*model, {{57}}, {.max_new_tokens = 1}), DataError);
  EXPECT_THROW(generate(*model, {{1}}, {.max_new_tokens = 0}), ConfigError);
  try {
    generate(*model, {{1, 2}}, {.max_new_tokens = 63});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "max_new_tokens: 63 (allowed: 1 to 62: the prompt has 2 tokens, the model 64 positions)");
  }
}

TEST(GenerateEndTest, FullCacheIsAnError) {
  auto model = tiny("llama", at::kFloat);
  KvCache cache = model->make_cache(1, 2);
  model->prefill(row_of({1, 2}), at::tensor({2}, at::kLong), cache);
  EXPECT_THROW(model->decode(at::tensor({1}, at::kLong), cache), RuntimeError);
}

}  // namespace
}  // namespace hyper_parallel
