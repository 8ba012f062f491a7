// SPDX-License-Identifier: Apache-2.0
// Reads tensors of a checkpoint by name, whatever layout saved them: for export, and for generation straight from a checkpoint folder.
//
//   CheckpointReader reader("output/checkpoints/step-000100");
//   at::Tensor weight = reader.read("model.layers.0.mlp.up_proj.weight");   // whole
//   reader.read_box(name, box, destination);                                // a block of it
//
// Not collective. Files are opened when first needed; each piece's checksum is compared before the first read of it. CheckpointError names
// file, tensor and box of what is damaged. One reader is for one thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hyper_parallel/distributed_checkpoint/checkpoint_metadata.h"
#include "hyper_parallel/distributed_checkpoint/safetensors.h"

namespace hyper_parallel {

class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& folder, bool verify_checksums = true);
  const std::filesystem::path& folder() const { return folder_; }
  const CheckpointMetadata& metadata() const { return metadata_; }
  const nlohmann::json& extra() const { return metadata_.extra; }
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return metadata_.find(name) != nullptr; }
  const CheckpointTensor& info(const std::string& name) const;  // CheckpointError names a near one
  at::Tensor read(const std::string& name);
  // `destination`: contiguous, box.numel() elements; the dtype is converted if it differs.
  void read_box(const std::string& name, const Box& box, const at::Tensor& destination);

 private:
  const SafetensorsFile& file(size_t index);
  void verify_piece(const CheckpointTensor& tensor, const CheckpointPiece& piece, std::span<const std::byte> bytes);

  std::filesystem::path folder_;
  bool verify_checksums_;
  CheckpointMetadata metadata_;
  std::vector<std::optional<SafetensorsFile>> files_;
  std::vector<std::vector<bool>> verified_;  // by tensor, piece
};

}  // namespace hyper_parallel
