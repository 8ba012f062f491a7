// SPDX-License-Identifier: Apache-2.0
// Model folders: out and in again, by whole tensors and by ranges, and what a folder that does not fit says.
#include "hyper_parallel/models/weights.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

using testing::HasSubstr;

class WeightsTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<CausalLm> model(uint64_t seed, bool tied = true, at::ScalarType dtype = at::kFloat, const nlohmann::json& changes = {}) {
    nlohmann::json config{{"vocab_size", 33},         {"hidden_size", 12},        {"intermediate_size", 20}, {"num_hidden_layers", 2},
                          {"num_attention_heads", 3}, {"num_key_value_heads", 1}, {"head_dim", 6},           {"tie_word_embeddings", tied}};
    if (!changes.is_null()) config.update(changes);
    auto made = make_model("qwen3", config);
    materialize(made->module(), {.dtype = dtype, .seed = seed});
    return made;
  }
  NamedTensors tensors(CausalLm& model) {
    NamedTensors named;
    for (auto& [name, slot] : model.module().named_parameters()) named.emplace_back(name, slot->tensor);
    return named;
  }
  void write(CausalLm& model, at::ScalarType dtype = at::kFloat, int64_t max_file_bytes = 1 << 30) {
    export_model(folder_, model.config(), tensors(model), dtype, max_file_bytes);
  }
  std::string failure(CausalLm& target) {
    try {
      load_weights(whole_state(target.module()), folder_, target.module().tied_names());
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "no error";
  }

  const std::filesystem::path folder_ = std::filesystem::temp_directory_path() / hp::str("weights_test_", getpid());
};

TEST_F(WeightsTest, WrittenAndReadAgain) {
  for (const bool tied : {true, false}) {
    for (const int64_t max_file_bytes : {1 << 30, 3000}) {
      SetUp();
      auto source = model(1, tied);
      write(*source, at::kFloat, max_file_bytes);
      EXPECT_EQ(std::filesystem::exists(folder_ / "model.safetensors.index.json"), max_file_bytes == 3000);
      EXPECT_EQ(SafetensorsFolder(folder_).contains("lm_head.weight"), !tied);
      auto loaded = load_model(folder_, at::kFloat);
      const auto mine = tensors(*loaded), theirs = tensors(*source);
      ASSERT_EQ(mine.size(), theirs.size());
      for (size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(mine[i].second.equal(theirs[i].second)) << mine[i].first;
      EXPECT_TRUE(mine[0].second.requires_grad());
    }
  }
}

TEST_F(WeightsTest, TypesAreConverted) {
  auto source = model(1);
  for (const auto on_disk : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto in_memory : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SetUp();
      write(*source, on_disk);
      auto loaded = load_model(folder_, in_memory);
      const auto mine = tensors(*loaded), theirs = tensors(*source);
      for (size_t i = 0; i < mine.size(); ++i)
        EXPECT_TRUE(mine[i].second.equal(theirs[i].second.to(on_disk).to(in_memory))) << mine[i].first;
    }
  }
}

TEST_F(WeightsTest, RangesOfEveryRankMakeTheWhole) {
  auto source = model(1);
  write(*source);
  for (const int64_t ranks : {2, 3, 8}) {
    for (const auto& [name, whole] : tensors(*source)) {
      at::Tensor joined = at::zeros({whole.numel()}, whole.options());
      for (int64_t rank = 0; rank < ranks; ++rank) {
        StateDict state;
        for (const auto& [other, tensor] : tensors(*source)) {
          const int64_t begin = tensor.numel() * rank / ranks, end = tensor.numel() * (rank + 1) / ranks;
          at::Tensor piece = other == name ? joined.narrow(0, begin, end - begin) : at::zeros({end - begin}, tensor.options());
          state.push_back(range_entry(other, tensor.sizes().vec(), piece, begin));
        }
        load_weights(state, folder_);
      }
      ASSERT_TRUE(joined.equal(whole.detach().flatten())) << name << " over " << ranks;
    }
  }
}

TEST_F(WeightsTest, ConfigurationIsKept) {
  auto source = model(1);
  write(*source, at::kBFloat16);
  const nlohmann::json config = read_model_config(folder_);
  EXPECT_EQ(config["architectures"], nlohmann::json({"Qwen3ForCausalLM"}));
  EXPECT_EQ(config["model_type"], "qwen3");
  EXPECT_EQ(config["dtype"], "bfloat16");
  EXPECT_EQ(config["head_dim"], 6);
}

TEST_F(WeightsTest, TiedHeadStoredTwiceOrUnderItsSecondNameOnly) {
  auto source = model(1), target = model(2);
  NamedTensors named = tensors(*source);
  named.emplace_back("lm_head.weight", named[0].second.clone());
  export_model(folder_, source->config(), named, at::kFloat);
  EXPECT_EQ(failure(*target), "no error");
  named.erase(named.begin());
  std::filesystem::remove_all(folder_);
  export_model(folder_, source->config(), named, at::kFloat);
  auto third = model(3);
  EXPECT_EQ(failure(*third), "no error");
  EXPECT_TRUE(tensors(*third)[0].second.equal(tensors(*source)[0].second));
}

TEST_F(WeightsTest, MisfitsAreListed) {
  auto source = model(1, false);
  NamedTensors named = tensors(*source);
  std::erase_if(named, [](auto& item) { return item.first == "model.norm.weight"; });
  named.emplace_back("model.layers.9.surprise", at::ones({2}));
  export_model(folder_, source->config(), named, at::kFloat);
  auto target = model(2, false, at::kFloat, {{"intermediate_size", 21}});
  const std::string message = failure(*target);
  EXPECT_THAT(message, HasSubstr("1 missing:\n    model.norm.weight"));
  EXPECT_THAT(message, HasSubstr("1 not of this model:\n    model.layers.9.surprise"));
  EXPECT_THAT(message, HasSubstr("6 of another shape:"));
  EXPECT_THAT(message, HasSubstr("model.layers.0.mlp.gate_proj.weight: [20, 12] in the folder, the model has [21, 12]"));
  EXPECT_TRUE(tensors(*target)[0].second.equal(tensors(*model(2, false, at::kFloat, {{"intermediate_size", 21}}))[0].second))
      << "nothing was written";
}

TEST_F(WeightsTest, BrokenFoldersAreNamed) {
  EXPECT_THROW(load_model(folder_, at::kFloat), ConfigError);
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "config.json") << "{\"model_type\": ";
  try {
    read_model_config(folder_);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no valid JSON at byte"));
  }
  auto source = model(1);
  EXPECT_THROW(export_model(folder_, source->config(), tensors(*source), at::kLong), ConfigError);
}

}  // namespace
}  // namespace hyper_parallel
