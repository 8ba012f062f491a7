// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/train/model_folder.h"

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"
#include "hyper_parallel/models/weights.h"

namespace hyper_parallel {
namespace {

const nlohmann::json& model_of(const CheckpointReader& reader) {
  if (!reader.extra().contains("model"))
    throw CheckpointError(str(reader.folder().string(), " holds no model configuration: not saved by training"));
  return reader.extra().at("model");
}

InferenceModel from_checkpoint(const std::filesystem::path& folder, at::ScalarType dtype) {
  CheckpointReader reader(folder);
  InferenceModel loaded{make_model("", model_of(reader), folder.string()), make_tokenizer(reader.extra().value("tokenizer", "byte"))};
  materialize(loaded.model->module(), {.dtype = dtype});
  for (const StateEntry& entry : whole_state(loaded.model->module())) reader.read_box(entry.name, entry.boxes.at(0), entry.local);
  return loaded;
}

nlohmann::json keys_of(const ModelConfig& config) {
  return config.config.is_null() ? nlohmann::json::object() : nlohmann::json(config.config);
}

std::unique_ptr<CausalLm> model_from_folder_config(const ModelConfig& config) {
  nlohmann::json json = read_model_config(*config.pretrained_path);
  json.update(keys_of(config));
  return make_model("", json, str(*config.pretrained_path, "/config.json and model.config"));
}

}  // namespace

std::unique_ptr<CausalLm> model_from_config(const LoadedConfig& loaded) {
  const ModelConfig& config = loaded.config.model;
  const std::string where = "model.config";
  try {
    if (config.pretrained_path) return model_from_folder_config(config);
    return make_model(config.type, keys_of(config), where);
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    if (config.pretrained_path) throw loaded.document.error("model.pretrained_path", message);
    const size_t begin = where.size() + 2, end = message.find(": ", begin);  // "model.config: hidden_size: 0 (allowed: ...)"
    if (!message.starts_with(where + ": ") || end == std::string::npos) throw loaded.document.error(where, message);
    throw loaded.document.error(where + "." + message.substr(begin, end - begin), message.substr(end + 2));
  }
}

std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
  if (const auto folder = checkpoint_location(path); std::filesystem::exists(folder / kCheckpointMetadataFile)) return folder;
  for (const std::filesystem::path& parent : {path / "checkpoints", path})
    if (std::filesystem::exists(parent / "LATEST")) return latest_checkpoint(parent);
  return {};
}

InferenceModel load_for_inference(const std::filesystem::path& path, at::ScalarType dtype) {
  if (const std::filesystem::path checkpoint = find_checkpoint(path); !checkpoint.empty()) return from_checkpoint(checkpoint, dtype);
  if (!std::filesystem::exists(path)) throw CheckpointError(str(path.string(), ": no such file or folder"));
  if (!std::filesystem::exists(path / "config.json"))
    throw CheckpointError(str(path.string(), " is neither a checkpoint (", kCheckpointMetadataFile,
                              "), a run's folder (checkpoints/LATEST) nor a model folder (config.json)"));
  for (const char* own : {"tokenizer.json", "tokenizer.model", "vocab.json"})
    if (std::filesystem::exists(path / own))
      throw CheckpointError(str(path.string(), ": has a tokenizer of its own (", own, "); this version knows only \"byte\""));
  return {load_model(path, dtype), make_tokenizer("byte")};
}

void export_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& folder, at::ScalarType dtype) {
  CheckpointReader reader(checkpoint);
  const auto model = make_model("", model_of(reader), checkpoint.string());
  NamedTensors tensors;
  for (const auto& [name, slot] : model->module().named_parameters()) tensors.emplace_back(name, reader.read(name));
  export_model(folder, model->config(), tensors, dtype);
}

std::string generate_text(CausalLm& model, const Tokenizer& tokenizer, const std::string& prompt, GenerateOptions options,
                          const std::function<bool(const std::string&)>& on_text) {
  std::string text;
  options.num_tokens = tokenizer.vocab_size();  // a model's vocabulary may be padded
  options.on_token = [&](size_t, int64_t token) {
    const std::string piece = tokenizer.decode(std::vector<int64_t>{token});
    text += piece;
    return !on_text || on_text(piece);
  };
  generate(model, {tokenizer.encode(prompt)}, options);
  return text;
}

}  // namespace hyper_parallel
