// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/models/qwen3/config.h"

namespace hyper_parallel {

DecoderConfig read_qwen3_config(const nlohmann::json& json, const std::string& where) {
  ModelConfigReader reader(json, where);
  DecoderConfig config = read_decoder_config(reader, {.head_dim = 128, .max_position_embeddings = 32768});
  config.qk_norm = true;
  reader.allow("use_sliding_window", {false});
  reader.allow("layer_types", {std::vector<std::string>(static_cast<size_t>(config.num_layers), "full_attention")});
  reader.ignore({"max_window_layers", "sliding_window"});
  reader.finish();
  return config;
}

}  // namespace hyper_parallel
