// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/models/decoder/model.h"
#include "hyper_parallel/models/llama/config.h"

namespace hyper_parallel {
namespace {

std::unique_ptr<CausalLm> make_llama(const nlohmann::json& config, const std::string& where) {
  const DecoderConfig checked = read_llama_config(config, where);
  nlohmann::json named = config;
  named["model_type"] = "llama";
  return std::make_unique<DecoderLm>(checked, std::move(named));
}

HYPER_PARALLEL_MODEL("llama",
                     {make_llama, "LlamaForCausalLM", "Llama 1 to 3: grouped attention, SwiGLU, optional biases, llama3 rotary scaling"});

}  // namespace
}  // namespace hyper_parallel
