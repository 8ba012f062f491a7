// SPDX-License-Identifier: Apache-2.0
// What config.json keys mean, and what a wrong one says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/models/causal_lm.h"
#include "hyper_parallel/models/decoder/config.h"
#include "hyper_parallel/models/llama/config.h"
#include "hyper_parallel/models/qwen3/config.h"

namespace hyper_parallel {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json base() {
  return {{"vocab_size", 100}, {"hidden_size", 32}, {"intermediate_size", 48}, {"num_hidden_layers", 2}, {"num_attention_heads", 4}};
}
json with(const json& changes) {
  json config = base();
  config.update(changes);
  return config;
}

std::string failure(const json& config, const std::string& type = "llama") {
  try {
    make_model(type, config, "m/config.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelConfigTest, DefaultsFollowTheArchitecture) {
  const DecoderConfig llama = read_llama_config(base(), "x"), qwen3 = read_qwen3_config(base(), "x");
  EXPECT_EQ(llama.head_dim, 8);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(llama.num_kv_heads, 4);
  EXPECT_FALSE(llama.qk_norm);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(llama.rotary.theta, 10000);
  EXPECT_EQ(llama.rotary.scaling, RotaryOptions::Scaling::kNone);
}

TEST(ModelConfigTest, BothSpellingsOfRotaryOptions) {
  const json scaling{{"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 64}};
  json old_scaling = scaling, new_scaling = scaling;
  old_scaling["rope_type"] = "llama3";
  new_scaling.update({{"rope_type", "llama3"}, {"rope_theta", 5e5}});
  for (const json& config : {with({{"rope_theta", 5e5}, {"rope_scaling", old_scaling}}), with({{"rope_parameters", new_scaling}})}) {
    const RotaryOptions rotary = read_llama_config(config, "x").rotary;
    EXPECT_EQ(rotary.theta, 5e5);
    EXPECT_EQ(rotary.scaling, RotaryOptions::Scaling::kLlama3);
    EXPECT_EQ(rotary.factor, 8);
    EXPECT_EQ(rotary.original_positions, 64);
  }
  EXPECT_EQ(read_qwen3_config(with({{"rope_scaling", nullptr}, {"rope_theta", 7}}), "x").rotary.theta, 7);
}

TEST(ModelConfigTest, EveryMistakeNamesKeyValueAndWhatIsAllowed) {
  const std::vector<std::pair<json, std::string>> cases{
      {{{"hidden_size", nullptr}}, "m/config.json: hidden_size: missing (a whole number above 0)"},
      {{{"hidden_size", nullptr}, {"hiden_size", 32}}, "m/config.json: hidden_size: missing (a whole number above 0); found hiden_size"},
      {{{"hidden_size", 0}}, "m/config.json: hidden_size: 0 (allowed: a whole number above 0)"},
      {{{"hidden_size", "32"}}, "m/config.json: hidden_size: \"32\" (allowed: a whole number above 0)"},
      {{{"vocab_size", 1.5}}, "m/config.json: vocab_size: 1.5 (allowed: a whole number above 0)"},
      {{{"tie_word_embeddings", 1}}, "m/config.json: tie_word_embeddings: 1 (allowed: true, false)"},
      {{{"num_key_value_heads", 3}}, "m/config.json: num_key_value_heads: 3 does not divide num_attention_heads, 4"},
      {{{"num_attention_heads", 5}}, "m/config.json: hidden_size: 32 is no multiple of num_attention_heads, 5 (or give head_dim)"},
      {{{"head_dim", 7}}, "m/config.json: head_dim: 7 (allowed: an even number, for rotary positions)"},
      {{{"hidden_act", "gelu"}}, "m/config.json: hidden_act: \"gelu\" is not supported (allowed: \"silu\", \"swish\")"},
      {{{"attention_dropout", 0.1}}, "m/config.json: attention_dropout: 0.1 is not supported (allowed: 0, 0.0)"},
      {{{"tie_word_embedings", true}}, "m/config.json: tie_word_embedings: unknown key; did you mean tie_word_embeddings?"},
      {{{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}}},
       "m/config.json: rope_scaling.rope_type: \"yarn\" is not supported (allowed: \"default\", \"linear\", \"llama3\")"},
      {{{"rope_parameters", {{"rope_type", "linear"}}}}, "m/config.json: rope_parameters.factor: missing (a number)"},
      {{{"rope_theta", -1.0}}, "m/config.json: rope_theta: -1 (allowed: above 0)"},
      {{{"rms_norm_eps", -1.0}}, "m/config.json: rms_norm_eps: -1 (allowed: 0 or above)"},
      {{{"model_type", "qwen3"}}, "m/config.json: model_type: \"qwen3\", but \"llama\" is asked for"},
  };
  for (const auto& [changes, message] : cases) {
    const std::string got = failure(with(changes));
    // "rope_parameters" is read under its own name, an old "rope_scaling" under that.
    EXPECT_EQ(got, message);
  }
  EXPECT_THAT(failure(json::array()), HasSubstr("no model configuration"));
  EXPECT_THAT(failure(with({{"use_sliding_window", true}}), "qwen3"),
              HasSubstr("use_sliding_window: true is not supported (allowed: false)"));
  EXPECT_THAT(failure(with({{"layer_types", {"full_attention", "sliding_attention"}}}), "qwen3"), HasSubstr("layer_types"));
}

TEST(ModelRegistryTest, NamesAreKnown) {
  EXPECT_THAT(model_names(), testing::ElementsAre("llama", "qwen3"));
  EXPECT_EQ(failure(base(), "gpt2"), "m/config.json: model_type: \"gpt2\" is unknown (allowed: llama, qwen3)");
  EXPECT_EQ(failure(base(), ""), "m/config.json: model_type: missing (allowed: llama, qwen3)");
  EXPECT_EQ(failure(with({{"model_type", "llama"}}), ""), "no error");
  EXPECT_THROW(register_model("llama", {}), InternalError);
}

}  // namespace
}  // namespace hyper_parallel
