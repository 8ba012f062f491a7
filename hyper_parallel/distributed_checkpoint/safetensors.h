// SPDX-License-Identifier: Apache-2.0
// The safetensors format: an 8-byte little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then raw data.
//
//   SafetensorsFolder weights("qwen3/");                 // model.safetensors, or the files of model.safetensors.index.json
//   at::Tensor w = weights.read("model.norm.weight");
//   write_safetensors("out/model.safetensors", {{"model.norm.weight", w}}, {{"format", "pt"}});
//
// Headers are checked when opened: CheckpointError names the file, tensor, expected and found sizes of anything damaged or truncated.
// A write that fails (disk full) is a RuntimeError with the path and leaves no file behind.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hyper_parallel/dtensor/box.h"

namespace hyper_parallel {

namespace detail {
class MappedFile;
}

struct SafetensorsInfo {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  int64_t begin_bytes, end_bytes;  // in the file
};

// One file, mapped read-only for its lifetime. Threads may read at the same time.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);
  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, SafetensorsInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafetensorsInfo& info(const std::string& name) const;       // CheckpointError lists near names
  at::Tensor read(const std::string& name) const;                   // a copy
  std::span<const std::byte> header_bytes() const;                  // all before the data
  std::span<const std::byte> bytes(const std::string& name) const;  // of the mapping, valid as long as the file object
  // Copies elements of `box` into `destination` (contiguous, box.numel() elements), converting the dtype if it differs.
  void read_box(const std::string& name, const Box& box, const at::Tensor& destination) const;
  // Copies elements of `box` to the place `begin` of a row-major array of shape `sizes` whose elements are those of `destination`
  // (contiguous), converting the dtype if it differs.
  void read_box_into(const std::string& name, const Box& box, const at::Tensor& destination, std::span<const int64_t> sizes,
                     std::span<const int64_t> begin) const;

 private:
  std::filesystem::path path_;
  std::map<std::string, SafetensorsInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::shared_ptr<const detail::MappedFile> mapping_;
};

// The tensors of a Hugging Face model folder: one file, or several with an index.
class SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::filesystem::path& folder);
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  const SafetensorsInfo& info(const std::string& name) const;
  at::Tensor read(const std::string& name) const;
  void read_box(const std::string& name, const Box& box, const at::Tensor& destination) const;

 private:
  const SafetensorsFile& file_with(const std::string& name) const;
  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> file_of_;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
// Writes to a temporary name, syncs, then renames. Data follows the order given, larger element sizes first so that all of it is aligned.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});
// Splits over files of at most max_file_bytes ("model-00001-of-00003.safetensors") with an index when one file is not enough. Files take
// their names once all are written; weight files of an earlier export in that folder stay until then.
void write_safetensors_folder(const std::filesystem::path& folder, const NamedTensors& tensors, int64_t max_file_bytes = 5'000'000'000);

const char* safetensors_name(at::ScalarType dtype);  // "F32"; CheckpointError for a dtype the format lacks
at::ScalarType safetensors_dtype(const std::string& name);

}  // namespace hyper_parallel
