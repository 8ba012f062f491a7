// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/models/decoder/config.h"

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

// transformers 5 writes rope_parameters; earlier versions wrote rope_scaling beside a top-level rope_theta.
RotaryOptions read_rotary(ModelConfigReader& reader, int64_t head_dim, int64_t max_positions) {
  RotaryOptions rotary{.dim = head_dim};
  rotary.theta = reader.number("rope_theta", rotary.theta);
  const bool both = reader.has("rope_parameters") && reader.has("rope_scaling");
  if (both) reader.fail("rope_scaling", "given beside rope_parameters (allowed: one of them)");
  ModelConfigReader scaling = reader.section(reader.has("rope_scaling") ? "rope_scaling" : "rope_parameters");
  rotary.theta = scaling.number("rope_theta", rotary.theta);
  if (rotary.theta <= 0) reader.fail("rope_theta", str(rotary.theta, " (allowed: above 0)"));
  scaling.allow("partial_rotary_factor", {1.0});
  const std::string type = scaling.text("rope_type", scaling.text("type", "default"));
  if (type == "linear" || type == "llama3") rotary.factor = scaling.number("factor");
  if (rotary.factor < 1) scaling.fail("factor", str(rotary.factor, " (allowed: 1 or above)"));
  if (type == "linear") {
    rotary.scaling = RotaryOptions::Scaling::kLinear;
  } else if (type == "llama3") {
    rotary.scaling = RotaryOptions::Scaling::kLlama3;
    rotary.low_frequency_factor = scaling.number("low_freq_factor");
    rotary.high_frequency_factor = scaling.number("high_freq_factor");
    if (rotary.low_frequency_factor <= 0 || rotary.high_frequency_factor <= rotary.low_frequency_factor)
      scaling.fail("high_freq_factor", str(rotary.high_frequency_factor, " (allowed: above low_freq_factor, which is ",
                                           rotary.low_frequency_factor, " and must be above 0)"));
    rotary.original_positions = scaling.positive("original_max_position_embeddings", max_positions);
  } else if (type != "default") {
    scaling.fail("rope_type", str("\"", type, "\" is not supported (allowed: \"default\", \"linear\", \"llama3\")"));
  }
  scaling.finish();
  return rotary;
}

}  // namespace

DecoderConfig read_decoder_config(ModelConfigReader& reader, const DecoderDefaults& defaults) {
  DecoderConfig config;
  config.vocab_size = reader.positive("vocab_size");
  config.hidden_size = reader.positive("hidden_size");
  config.intermediate_size = reader.positive("intermediate_size");
  config.num_layers = reader.positive("num_hidden_layers");
  config.num_heads = reader.positive("num_attention_heads");
  config.num_kv_heads = reader.positive("num_key_value_heads", config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0)
    reader.fail("num_key_value_heads", str(config.num_kv_heads, " does not divide num_attention_heads, ", config.num_heads));
  if (!reader.has("head_dim") && defaults.head_dim == 0 && config.hidden_size % config.num_heads != 0)
    reader.fail("hidden_size",
                str(config.hidden_size, " is no multiple of num_attention_heads, ", config.num_heads, " (or give head_dim)"));
  config.head_dim = reader.positive("head_dim", defaults.head_dim != 0 ? defaults.head_dim : config.hidden_size / config.num_heads);
  if (config.head_dim % 2 != 0) reader.fail("head_dim", str(config.head_dim, " (allowed: an even number, for rotary positions)"));
  config.max_position_embeddings = reader.positive("max_position_embeddings", defaults.max_position_embeddings);
  config.rms_norm_eps = reader.number("rms_norm_eps", config.rms_norm_eps);
  if (config.rms_norm_eps < 0) reader.fail("rms_norm_eps", str(config.rms_norm_eps, " (allowed: 0 or above)"));
  config.initializer_range = reader.number("initializer_range", config.initializer_range);
  if (config.initializer_range < 0) reader.fail("initializer_range", str(config.initializer_range, " (allowed: 0 or above)"));
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", false);
  config.attention_bias = reader.boolean("attention_bias", false);
  config.rotary = read_rotary(reader, config.head_dim, config.max_position_embeddings);
  reader.allow("hidden_act", {"silu", "swish"});
  reader.allow("attention_dropout", {0, 0.0});
  reader.ignore({"architectures", "bos_token_id", "dtype", "eos_token_id", "id2label", "label2id", "model_type", "pad_token_id",
                 "torch_dtype", "transformers_version", "use_cache"});
  return config;
}

}  // namespace hyper_parallel
