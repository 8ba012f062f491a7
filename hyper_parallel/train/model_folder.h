// SPDX-License-Identifier: Apache-2.0
// Models from a configuration, and from what a run leaves behind: a checkpoint, a run's folder (its newest checkpoint), or a Hugging Face
// folder.
//
//   InferenceModel loaded = load_for_inference("outputs/tiny_qwen3", at::kFloat);
//   export_checkpoint("outputs/tiny_qwen3/checkpoints/step-000400", "exported/", at::kBFloat16);
#pragma once
#include <c10/core/ScalarType.h>

#include <filesystem>
#include <memory>
#include <string>

#include "hyper_parallel/data/tokenizer.h"
#include "hyper_parallel/generate/generate.h"
#include "hyper_parallel/models/causal_lm.h"
#include "hyper_parallel/train/train_config.h"

namespace hyper_parallel {

// The model of `model:` on meta. ConfigError names the key, the file and the line.
std::unique_ptr<CausalLm> model_from_config(const LoadedConfig& loaded);

// The checkpoint folder that `path` means: itself, the newest of its checkpoints/, or the newest in it; "" if it is none of these.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

struct InferenceModel {
  std::unique_ptr<CausalLm> model;
  std::unique_ptr<Tokenizer> tokenizer;  // a Hugging Face folder does not say: "byte"
};

// The whole model on this rank. CheckpointError if `path` is neither a checkpoint nor a model folder.
InferenceModel load_for_inference(const std::filesystem::path& path, at::ScalarType dtype);

// Writes the checkpoint's model as a Hugging Face folder.
void export_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& folder, at::ScalarType dtype);

// Continues the prompt and returns the new text alone. `on_text`, if given, gets it piece by piece; false ends the text.
std::string generate_text(CausalLm& model, const Tokenizer& tokenizer, const std::string& prompt, GenerateOptions options,
                          const std::function<bool(const std::string&)>& on_text = nullptr);

}  // namespace hyper_parallel
