// SPDX-License-Identifier: Apache-2.0
// Qwen3 (dense): the shared decoder with RMSNorm on each head's query and key, and a head size of its own. No torch.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "hyper_parallel/models/decoder/config.h"

namespace hyper_parallel {

// ConfigError names key, value, `where` and what is allowed.
DecoderConfig read_qwen3_config(const nlohmann::json& config, const std::string& where);

}  // namespace hyper_parallel
