// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/distributed_checkpoint/detail/files.h"
#include "hyper_parallel/distributed_checkpoint/detail/safetensors_header.h"

namespace hyper_parallel {
namespace {

namespace fs = std::filesystem;

std::string shard_name(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

// Consecutive tensors, at most max_file_bytes together unless one alone is larger.
std::vector<NamedTensors> split_by_size(const NamedTensors& tensors, int64_t max_file_bytes) {
  std::vector<NamedTensors> parts(1);
  int64_t part_bytes = 0;
  for (const auto& entry : tensors) {
    const int64_t num_bytes = static_cast<int64_t>(entry.second.nbytes());
    if (!parts.back().empty() && part_bytes + num_bytes > max_file_bytes) {
      parts.emplace_back();
      part_bytes = 0;
    }
    parts.back().push_back(entry);
    part_bytes += num_bytes;
  }
  return parts;
}

// An earlier export's files would be found before, or beside, the new ones.
void remove_other_weight_files(const fs::path& folder, const std::set<std::string>& written) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_weights = name == "model.safetensors" || name == "model.safetensors.index.json" ||
                            (name.starts_with("model-") && name.ends_with(".safetensors"));
    if (is_weights && !written.contains(name)) fs::remove(entry.path());
  }
}

}  // namespace

void write_safetensors(const fs::path& path, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<const std::pair<std::string, at::Tensor>*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->second.itemsize() > b->second.itemsize(); });
  std::vector<detail::SafetensorsItem> items;
  for (const auto* entry : order) items.push_back({entry->first, entry->second.scalar_type(), entry->second.sizes().vec()});
  const std::string header = detail::make_safetensors_header(items, metadata);

  const fs::path temporary = detail::temporary_name(path);
  detail::OutputFile file(temporary);
  file.write(header.data(), header.size());
  for (const auto* entry : order) {
    const at::Tensor data = entry->second.cpu().contiguous();
    file.write(data.const_data_ptr(), data.nbytes());
  }
  file.sync_and_close();
  detail::rename_durably(temporary, path);
}

void write_safetensors_folder(const fs::path& folder, const NamedTensors& tensors, int64_t max_file_bytes) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw RuntimeError(str("cannot create folder ", folder.string(), ": ", error.message()));
  const std::map<std::string, std::string> metadata{{"format", "pt"}};  // transformers refuses a file without it
  const std::vector<NamedTensors> parts = split_by_size(tensors, max_file_bytes);
  std::set<std::string> written;
  if (parts.size() == 1) {
    write_safetensors(folder / "model.safetensors", parts[0], metadata);
    written.insert("model.safetensors");
  } else {
    nlohmann::json weight_map = nlohmann::json::object();
    int64_t total_bytes = 0;
    for (size_t part = 0; part < parts.size(); ++part) {
      const std::string name = shard_name(part, parts.size());
      write_safetensors(folder / name, parts[part], metadata);
      written.insert(name);
      for (const auto& [tensor_name, tensor] : parts[part]) {
        if (weight_map.contains(tensor_name)) throw CheckpointError(str("tensor name \"", tensor_name, "\" is given twice"));
        weight_map[tensor_name] = name;
        total_bytes += static_cast<int64_t>(tensor.nbytes());
      }
    }
    const nlohmann::json index{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", std::move(weight_map)}};
    detail::write_file_atomically(folder / "model.safetensors.index.json", index.dump(2) + "\n");
    written.insert("model.safetensors.index.json");
  }
  remove_other_weight_files(folder, written);
}

}  // namespace hyper_parallel
