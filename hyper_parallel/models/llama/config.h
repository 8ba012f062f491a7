// SPDX-License-Identifier: Apache-2.0
// Llama 1 to 3: the shared decoder, with optional biases and Llama 3's scaling of rotary frequencies. No torch.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "hyper_parallel/models/decoder/config.h"

namespace hyper_parallel {

// ConfigError names key, value, `where` and what is allowed.
DecoderConfig read_llama_config(const nlohmann::json& config, const std::string& where);

}  // namespace hyper_parallel
