// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/distributed_checkpoint/detail/files.h"
#include "hyper_parallel/distributed_checkpoint/detail/safetensors_header.h"

namespace hyper_parallel {
namespace {

namespace fs = std::filesystem;

constexpr const char *kSingleFile = "model.safetensors", *kIndexFile = "model.safetensors.index.json";

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

void check_names_once(const NamedTensors& tensors) {
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second) throw CheckpointError(str("tensor name \"", name, "\" is given twice"));
  }
}

void write_data(detail::OutputFile& file, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<const std::pair<std::string, at::Tensor>*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->second.itemsize() > b->second.itemsize(); });
  std::vector<detail::SafetensorsItem> items;
  for (const auto* entry : order) items.push_back({entry->first, entry->second.scalar_type(), entry->second.sizes().vec()});
  const std::string header = detail::make_safetensors_header(items, metadata);
  file.write(header.data(), header.size());
  for (const auto* entry : order) {
    const at::Tensor data = entry->second.cpu().contiguous();
    file.write(data.const_data_ptr(), data.nbytes());
  }
  file.finish();
}

std::string index_text(const std::vector<NamedTensors>& parts) {
  nlohmann::json weight_map = nlohmann::json::object();
  int64_t total_bytes = 0;
  for (size_t part = 0; part < parts.size(); ++part) {
    for (const auto& [name, tensor] : parts[part]) {
      weight_map[name] = shard_name(part, parts.size());
      total_bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return nlohmann::json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", std::move(weight_map)}}.dump(2) + "\n";
}

// Files of a folder, all under temporary names until all are written.
class StagedFiles {
 public:
  explicit StagedFiles(fs::path folder) : folder_(std::move(folder)) {}

  detail::OutputFile& add(const std::string& name) {
    names_.push_back(name);
    return files_.emplace_back(detail::temporary_name(folder_ / name));
  }

  // In the order given. If one cannot be renamed, those before it go too.
  void rename_all() {
    size_t num_renamed = 0;
    try {
      for (; num_renamed < files_.size(); ++num_renamed) files_[num_renamed].rename_to(folder_ / names_[num_renamed]);
    } catch (...) {
      std::error_code ignored;
      for (size_t index = 0; index < num_renamed; ++index) fs::remove(folder_ / names_[index], ignored);
      throw;
    }
  }

  // An earlier export's files would be found before, or beside, the new ones.
  void remove_other_weight_files() const {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      const bool is_weights = name == kSingleFile || name == kIndexFile || (name.starts_with("model-") && name.ends_with(".safetensors"));
      if (is_weights && std::find(names_.begin(), names_.end(), name) == names_.end()) fs::remove(entry.path());
    }
  }

 private:
  fs::path folder_;
  std::vector<std::string> names_;
  std::deque<detail::OutputFile> files_;
};

}  // namespace

void write_safetensors(const fs::path& path, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  detail::OutputFile file(detail::temporary_name(path));
  write_data(file, tensors, metadata);
  file.rename_to(path);
}

void write_safetensors_folder(const fs::path& folder, const NamedTensors& tensors, int64_t max_file_bytes) {
  check_names_once(tensors);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw RuntimeError(str("cannot create folder ", folder.string(), ": ", error.message()));
  const std::map<std::string, std::string> metadata{{"format", "pt"}};  // transformers refuses a file without it
  const std::vector<NamedTensors> parts = split_by_size(tensors, max_file_bytes);
  StagedFiles files(folder);
  if (parts.size() == 1) {
    write_data(files.add(kSingleFile), parts[0], metadata);
  } else {
    for (size_t part = 0; part < parts.size(); ++part) write_data(files.add(shard_name(part, parts.size())), parts[part], metadata);
    detail::OutputFile& index = files.add(kIndexFile);
    const std::string text = index_text(parts);
    index.write(text.data(), text.size());
    index.finish();
    fs::remove(folder / kIndexFile, error);  // of an earlier export: it must not name files of this one
  }
  files.rename_all();
  files.remove_other_weight_files();
}

}  // namespace hyper_parallel
