// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/safetensors.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/distributed_checkpoint/detail/files.h"
#include "hyper_parallel/distributed_checkpoint/detail/region.h"
#include "hyper_parallel/distributed_checkpoint/detail/safetensors_header.h"

namespace hyper_parallel {
namespace {

namespace fs = std::filesystem;

template <class Map>
std::string missing_name(const std::string& where, const std::string& name, const Map& known) {
  std::vector<std::string> candidates;
  for (const auto& [candidate, unused] : known) candidates.push_back(candidate);
  const std::string near = nearest_name(name, candidates);
  return str(where, ": no tensor \"", name, "\" among ", candidates.size(), near.empty() ? "" : str(" (did you mean \"", near, "\"?)"));
}

void check_box(const Box& box, const SafetensorsInfo& info, const std::string& where) {
  bool fits = box.offsets.size() == info.sizes.size() && box.sizes.size() == info.sizes.size();
  for (size_t dim = 0; fits && dim < info.sizes.size(); ++dim) {
    fits = box.offsets[dim] >= 0 && box.sizes[dim] >= 0 && box.offsets[dim] <= info.sizes[dim] - box.sizes[dim];
  }
  if (!fits) throw CheckpointError(str(where, ": box at ", box.offsets, " of ", box.sizes, " is not inside shape ", info.sizes));
}

}  // namespace

SafetensorsFile::SafetensorsFile(fs::path path) : path_(std::move(path)), mapping_(std::make_shared<detail::MappedFile>(path_)) {
  detail::SafetensorsHeader header =
      detail::parse_safetensors_header({mapping_->data(), static_cast<size_t>(mapping_->num_bytes())}, path_.string());
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
}

const SafetensorsInfo& SafetensorsFile::info(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw CheckpointError(missing_name(path_.string(), name, tensors_));
  return found->second;
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const SafetensorsInfo& found = info(name);
  at::Tensor tensor = at::empty(found.sizes, found.dtype);
  mapping_->read(found.begin_bytes, tensor.mutable_data_ptr(), found.end_bytes - found.begin_bytes);
  return tensor;
}

std::span<const std::byte> SafetensorsFile::header_bytes() const {
  uint64_t length = 0;
  std::memcpy(&length, mapping_->data(), 8);
  return {mapping_->data(), 8 + length};
}

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const SafetensorsInfo& found = info(name);
  return {mapping_->data() + found.begin_bytes, static_cast<size_t>(found.end_bytes - found.begin_bytes)};
}

void SafetensorsFile::read_box(const std::string& name, const Box& box, const at::Tensor& destination) const {
  read_box_into(name, box, destination, box.sizes, std::vector<int64_t>(box.sizes.size(), 0));
}

void SafetensorsFile::read_box_into(const std::string& name, const Box& box, const at::Tensor& destination, std::span<const int64_t> sizes,
                                    std::span<const int64_t> begin) const {
  const SafetensorsInfo& found = info(name);
  check_box(box, found, str(path_.string(), ": tensor \"", name, "\""));
  HYPER_PARALLEL_CHECK(destination.is_contiguous() && sizes.size() == box.sizes.size(), name, " ", sizes, " ", box.sizes);
  const bool converts = destination.scalar_type() != found.dtype;
  const std::vector<int64_t> zeros(box.sizes.size(), 0);
  const auto target_sizes = converts ? std::span<const int64_t>(box.sizes) : sizes;
  const at::Tensor target = converts ? at::empty(box.sizes, found.dtype) : destination;
  const int64_t element_bytes = static_cast<int64_t>(c10::elementSize(found.dtype));
  char* const data = static_cast<char*>(target.mutable_data_ptr());
  detail::for_each_run(found.sizes, box.offsets, target_sizes, converts ? std::span<const int64_t>(zeros) : begin, box.sizes,
                       [&](int64_t source, int64_t element, int64_t count) {
                         mapping_->read(found.begin_bytes + source * element_bytes, data + element * element_bytes, count * element_bytes);
                       });
  if (!converts) return;
  at::Tensor part = destination.view(at::IntArrayRef(sizes.data(), sizes.size()));
  for (size_t dim = 0; dim < sizes.size(); ++dim) part = part.narrow(static_cast<int64_t>(dim), begin[dim], box.sizes[dim]);
  part.copy_(target);
}

SafetensorsFolder::SafetensorsFolder(const fs::path& folder) : folder_(folder) {
  const fs::path single = folder / "model.safetensors", index_path = folder / "model.safetensors.index.json";
  if (fs::exists(single)) {
    files_.emplace_back(single);
    for (const auto& [name, unused] : files_[0].tensors()) file_of_[name] = 0;
    return;
  }
  if (!fs::exists(index_path)) {
    throw CheckpointError(str(folder.string(), ": has neither model.safetensors nor model.safetensors.index.json"));
  }
  std::map<std::string, std::string> weight_map;
  try {
    weight_map = nlohmann::json::parse(detail::read_file(index_path)).at("weight_map").get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(str(index_path.string(), ": damaged: ", error.what()));
  }
  std::map<std::string, size_t> number_of;
  for (const auto& [name, file] : weight_map) {
    if (file.find('/') != std::string::npos) throw CheckpointError(str(index_path.string(), ": \"", file, "\" is not a plain file name"));
    const auto [entry, is_new] = number_of.emplace(file, files_.size());
    if (is_new) files_.emplace_back(folder / file);
    files_[entry->second].info(name);  // says so if the file lacks it
    file_of_[name] = entry->second;
  }
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> result;
  for (const auto& [name, unused] : file_of_) result.push_back(name);
  return result;
}

bool SafetensorsFolder::contains(const std::string& name) const { return file_of_.contains(name); }

const SafetensorsFile& SafetensorsFolder::file_with(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) throw CheckpointError(missing_name(folder_.string(), name, file_of_));
  return files_[found->second];
}

const SafetensorsInfo& SafetensorsFolder::info(const std::string& name) const { return file_with(name).info(name); }

at::Tensor SafetensorsFolder::read(const std::string& name) const { return file_with(name).read(name); }

void SafetensorsFolder::read_box(const std::string& name, const Box& box, const at::Tensor& destination) const {
  file_with(name).read_box(name, box, destination);
}

}  // namespace hyper_parallel
