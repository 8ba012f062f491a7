// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/models/decoder/model.h"
#include "hyper_parallel/models/qwen3/config.h"

namespace hyper_parallel {
namespace {

std::unique_ptr<CausalLm> make_qwen3(const nlohmann::json& config, const std::string& where) {
  const DecoderConfig checked = read_qwen3_config(config, where);
  nlohmann::json named = config;
  named["model_type"] = "qwen3";
  named["num_key_value_heads"] = checked.num_kv_heads;  // where it is missing transformers takes 32
  return std::make_unique<DecoderLm>(checked, std::move(named));
}

HYPER_PARALLEL_MODEL("qwen3", {make_qwen3, "Qwen3ForCausalLM", "Qwen3, dense: grouped attention with query and key norms, SwiGLU"});

}  // namespace
}  // namespace hyper_parallel
