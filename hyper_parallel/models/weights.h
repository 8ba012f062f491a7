// SPDX-License-Identifier: Apache-2.0
// Hugging Face model folders: config.json and *.safetensors, in and out. Parameter names are Hugging Face's already.
//
//   auto model = make_model_from_folder("qwen3/");          // meta
//   auto weights = load_model("qwen3/", at::kFloat);        // or: built and filled, on this rank alone
//   load_weights(engine.state_dict(), "qwen3/");            // each rank reads the boxes that it holds
//   export_model("out/", model->config(), tensors, at::kBFloat16);
//
// On disk f64, f32, bf16 and f16 are converted to the slot's dtype. CheckpointError lists missing, extra and wrongly shaped tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "hyper_parallel/distributed_checkpoint/safetensors.h"
#include "hyper_parallel/dtensor/state_dict.h"
#include "hyper_parallel/models/causal_lm.h"

namespace hyper_parallel {

// folder/config.json; ConfigError if it is missing or no JSON.
nlohmann::json read_model_config(const std::filesystem::path& folder);
std::unique_ptr<CausalLm> make_model_from_folder(const std::filesystem::path& folder);
// Built, materialized in `dtype` and filled.
std::unique_ptr<CausalLm> load_model(const std::filesystem::path& folder, at::ScalarType dtype);

// One whole entry for each parameter under its first name; loading into it writes the parameters.
StateDict whole_state(Module& root);

// Fills every entry's boxes. A tied second name (lm_head.weight) in the folder is accepted beside the first, or instead of it.
// `tied`: (second name, first name) pairs, as Module::tied_names() gives.
void load_weights(const StateDict& state, const std::filesystem::path& folder,
                  const std::vector<std::pair<std::string, std::string>>& tied = {});

// Writes config.json (with `architectures`, `model_type` and `dtype` set) and the tensors, converted to `dtype`, in files of at most
// max_file_bytes. `tensors`: whole, first names only, so a tied head is written once, as transformers does.
void export_model(const std::filesystem::path& folder, const nlohmann::json& config, const NamedTensors& tensors, at::ScalarType dtype,
                  int64_t max_file_bytes = 5'000'000'000);

}  // namespace hyper_parallel
