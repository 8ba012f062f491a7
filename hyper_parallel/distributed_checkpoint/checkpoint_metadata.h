// SPDX-License-Identifier: Apache-2.0
// What a checkpoint folder holds: every tensor with its global shape, and which box of it lies in which file under which checksum.
//
//   CheckpointMetadata metadata = inspect_checkpoint("output/checkpoints/step-000100");
//   for (const CheckpointTensor& tensor : metadata.tensors) log_info(tensor.name, " ", tensor.sizes, " in ", tensor.pieces.size(), "
//   pieces");
//
// Stored as metadata.json: {"checksum": XXH3 of the text of "content", "content": {...}}.
#pragma once
#include <c10/core/ScalarType.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hyper_parallel/dtensor/box.h"

namespace hyper_parallel {

inline constexpr int kCheckpointVersion = 1;
inline constexpr const char* kCheckpointMetadataFile = "metadata.json";

struct CheckpointPiece {
  Box box;            // of the global tensor
  size_t file;        // index into CheckpointMetadata::files
  std::string key;    // name of the piece in that file: the tensor's name if whole, else "name[0:5, 2:4]"
  uint64_t checksum;  // XXH3, 64 bits, of its bytes
};

struct CheckpointTensor {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<CheckpointPiece> pieces;  // cover the tensor; empty only for a tensor without elements
  int64_t num_bytes() const;
};

struct CheckpointFile {
  std::string name;  // "rank-00000.safetensors"
  int64_t num_bytes;
  uint64_t header_checksum;  // of all bytes before the data
};

struct CheckpointMetadata {
  int version = kCheckpointVersion;
  int num_ranks = 0;  // that saved it
  std::vector<CheckpointFile> files;
  std::vector<CheckpointTensor> tensors;  // sorted by name
  nlohmann::json extra;

  const CheckpointTensor* find(const std::string& name) const;  // nullptr if there is none
  int64_t num_bytes() const;                                    // of all tensors
  nlohmann::json to_json() const;                               // the "content"; checksums as 16 hex digits
};

// Reads and checks metadata.json: CheckpointError for a folder that is missing or no checkpoint, a damaged or newer file, tensors that the
// pieces do not cover. Data files are not opened (see verify_checkpoint).
CheckpointMetadata inspect_checkpoint(const std::filesystem::path& folder);

// The text of metadata.json.
std::string format_checkpoint_metadata(const CheckpointMetadata& metadata);

std::string piece_key(const std::string& name, const std::vector<int64_t>& sizes, const Box& box);

}  // namespace hyper_parallel
