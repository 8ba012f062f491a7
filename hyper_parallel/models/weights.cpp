// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/models/weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <fstream>
#include <set>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

constexpr size_t kMostListed = 20;

const std::map<at::ScalarType, const char*>& dtype_names() {
  static const std::map<at::ScalarType, const char*> names{
      {at::kFloat, "float32"}, {at::kDouble, "float64"}, {at::kBFloat16, "bfloat16"}, {at::kHalf, "float16"}};
  return names;
}

void list(std::string& message, const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  message += hp::str("\n  ", lines.size(), ' ', title, ':');
  for (size_t i = 0; i < std::min(lines.size(), kMostListed); ++i) message += "\n    " + lines[i];
  if (lines.size() > kMostListed) message += hp::str("\n    and ", lines.size() - kMostListed, " more");
}

// The name under which the folder stores `name`: itself, or a tied second name.
std::string stored_name(const SafetensorsFolder& weights, const std::string& name,
                        const std::vector<std::pair<std::string, std::string>>& tied) {
  if (weights.contains(name)) return name;
  for (const auto& [second, first] : tied)
    if (first == name && weights.contains(second)) return second;
  return {};
}

// Buffers that early Llama checkpoints carry; they follow from config.json.
bool is_derived(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

std::vector<std::string> extra_names(const SafetensorsFolder& weights, const StateDict& state,
                                     const std::vector<std::pair<std::string, std::string>>& tied) {
  std::set<std::string> wanted;
  for (const StateEntry& entry : state) wanted.insert(entry.name);
  for (const auto& [second, first] : tied) wanted.insert(second);
  std::vector<std::string> extra;
  for (const std::string& name : weights.names())
    if (!wanted.contains(name) && !is_derived(name)) extra.push_back(name);
  return extra;
}

void check_weights(const SafetensorsFolder& weights, const StateDict& state, const std::filesystem::path& folder,
                   const std::vector<std::pair<std::string, std::string>>& tied) {
  std::vector<std::string> missing, misfits;
  for (const StateEntry& entry : state) {
    const std::string name = stored_name(weights, entry.name, tied);
    if (name.empty()) {
      missing.push_back(entry.name);
    } else if (weights.info(name).sizes != entry.sizes) {
      misfits.push_back(hp::str(name, ": ", bracketed(weights.info(name).sizes), " in the folder, the model has ", bracketed(entry.sizes)));
    }
  }
  std::string problems;
  list(problems, "missing", missing);
  list(problems, "not of this model", extra_names(weights, state, tied));
  list(problems, "of another shape", misfits);
  if (!problems.empty()) throw CheckpointError(hp::str(folder.string(), ": the weights do not fit the model", problems));
}

void fill(const StateEntry& entry, const SafetensorsFolder& weights, const std::string& name) {
  const at::Tensor flat = entry.local.detach().view({-1});
  int64_t begin = 0;
  for (const Box& box : entry.boxes) {
    weights.read_box(name, box, flat.narrow(0, begin, box.numel()));
    begin += box.numel();
  }
}

}  // namespace

nlohmann::json read_model_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  std::ifstream file(path);
  if (!file) throw ConfigError(hp::str(path.string(), ": can't be read (a Hugging Face model folder has a config.json)"));
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::parse_error& error) {
    throw ConfigError(hp::str(path.string(), ": no valid JSON at byte ", error.byte));
  }
}

std::unique_ptr<CausalLm> make_model_from_folder(const std::filesystem::path& folder) {
  return make_model("", read_model_config(folder), (folder / "config.json").string());
}

std::unique_ptr<CausalLm> load_model(const std::filesystem::path& folder, at::ScalarType dtype) {
  auto model = make_model_from_folder(folder);
  for (auto& [name, slot] : model->module().named_parameters())
    slot->tensor = at::empty(slot->local_sizes(), at::TensorOptions(at::kCPU).dtype(dtype)).set_requires_grad(slot->trainable);
  load_weights(whole_state(model->module()), folder, model->module().tied_names());
  return model;
}

StateDict whole_state(Module& root) {
  StateDict state;
  for (auto& [name, slot] : root.named_parameters()) state.push_back(whole_entry(name, slot->tensor));
  return state;
}

void load_weights(const StateDict& state, const std::filesystem::path& folder,
                  const std::vector<std::pair<std::string, std::string>>& tied) {
  at::NoGradGuard no_grad;
  const SafetensorsFolder weights(folder);
  check_weights(weights, state, folder, tied);
  for (const StateEntry& entry : state) fill(entry, weights, stored_name(weights, entry.name, tied));
}

void export_model(const std::filesystem::path& folder, const nlohmann::json& config, const NamedTensors& tensors, at::ScalarType dtype,
                  int64_t max_file_bytes) {
  const auto dtype_name = dtype_names().find(dtype);
  if (dtype_name == dtype_names().end())
    throw ConfigError(hp::str("dtype ", c10::toString(dtype), " is no export format (allowed: f64, f32, bf16, f16)"));
  nlohmann::json written = config;
  const std::string type = config.value("model_type", std::string());
  written["architectures"] = {model_entry(type).architecture};
  written["dtype"] = dtype_name->second;
  written.erase("torch_dtype");
  std::filesystem::create_directories(folder);
  NamedTensors converted;
  for (const auto& [name, tensor] : tensors) converted.emplace_back(name, tensor.detach().to(dtype).contiguous());
  write_safetensors_folder(folder, converted, max_file_bytes);
  std::ofstream file(folder / "config.json");
  file << written.dump(2) << '\n';
  if (!file.flush()) throw RuntimeError(hp::str((folder / "config.json").string(), ": can't be written"));
}

}  // namespace hyper_parallel
