// SPDX-License-Identifier: Apache-2.0
// The numbers of a dense decoder (Llama, Qwen3 and alike) and how they are read from Hugging Face keys. No torch.
#pragma once
#include <cstdint>

#include "hyper_parallel/models/model_config_reader.h"
#include "hyper_parallel/nn/rotary_options.h"

namespace hyper_parallel {

struct DecoderConfig {
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;  // standard deviation of every matrix
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // of q, k, v and o
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over each head's query and key
  RotaryOptions rotary;
};

// What a model type assumes where config.json is silent.
struct DecoderDefaults {
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
};

// Reads and checks the keys that all dense decoders share; the caller adds its own and ends with reader.finish().
DecoderConfig read_decoder_config(ModelConfigReader& reader, const DecoderDefaults& defaults);

}  // namespace hyper_parallel
