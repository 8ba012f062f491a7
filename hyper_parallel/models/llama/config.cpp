// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/models/llama/config.h"

namespace hyper_parallel {

DecoderConfig read_llama_config(const nlohmann::json& json, const std::string& where) {
  ModelConfigReader reader(json, where);
  DecoderConfig config = read_decoder_config(reader, {});
  config.mlp_bias = reader.boolean("mlp_bias", false);
  reader.allow("pretraining_tp", {1});
  reader.finish();
  return config;
}

}  // namespace hyper_parallel
