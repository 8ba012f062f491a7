// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/checkpoint_metadata.h"

#include <algorithm>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"
#include "hyper_parallel/distributed_checkpoint/detail/checksum.h"
#include "hyper_parallel/distributed_checkpoint/detail/coverage.h"
#include "hyper_parallel/distributed_checkpoint/detail/files.h"
#include "hyper_parallel/distributed_checkpoint/safetensors.h"

namespace hyper_parallel {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const std::string kPrefix = R"({"checksum": ")", kMiddle = R"(", "content": )", kSuffix = "}\n";

uint64_t parse_checksum(const json& value) { return std::stoull(value.get<std::string>(), nullptr, 16); }

json piece_to_json(const CheckpointPiece& piece) {
  return {{"offsets", piece.box.offsets},
          {"sizes", piece.box.sizes},
          {"file", piece.file},
          {"key", piece.key},
          {"checksum", detail::checksum_text(piece.checksum)}};
}

CheckpointPiece parse_piece(const json& value) {
  return {{value.at("offsets").get<std::vector<int64_t>>(), value.at("sizes").get<std::vector<int64_t>>()},
          value.at("file").get<size_t>(),
          value.at("key").get<std::string>(),
          parse_checksum(value.at("checksum"))};
}

CheckpointTensor parse_tensor(const std::string& name, const json& value) {
  CheckpointTensor tensor{name, safetensors_dtype(value.at("dtype").get<std::string>()), value.at("sizes").get<std::vector<int64_t>>(), {}};
  for (const json& piece : value.at("pieces")) tensor.pieces.push_back(parse_piece(piece));
  return tensor;
}

CheckpointMetadata parse_content(const json& content, const std::string& file) {
  CheckpointMetadata metadata;
  metadata.version = content.at("version").get<int>();
  if (metadata.version != kCheckpointVersion) {
    throw CheckpointError(str(file, ": format version ", metadata.version, ", this program reads version ", kCheckpointVersion));
  }
  metadata.num_ranks = content.at("num_ranks").get<int>();
  for (const json& value : content.at("files")) {
    metadata.files.push_back({value.at("name"), value.at("num_bytes"), parse_checksum(value.at("header_checksum"))});
  }
  for (const auto& [name, value] : content.at("tensors").items()) metadata.tensors.push_back(parse_tensor(name, value));
  std::sort(metadata.tensors.begin(), metadata.tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  metadata.extra = content.at("extra");
  return metadata;
}

void check_tensor(const CheckpointTensor& tensor, size_t num_files, const std::string& file) {
  std::vector<Box> boxes;
  for (const CheckpointPiece& piece : tensor.pieces) {
    if (piece.file >= num_files || !detail::inside(piece.box, tensor.sizes)) {
      throw CheckpointError(str(file, ": tensor \"", tensor.name, "\": piece ", piece.key, " is not inside shape ", tensor.sizes));
    }
    boxes.push_back(piece.box);
  }
  if (const auto gap = detail::uncovered_part(tensor.sizes, boxes)) {
    throw CheckpointError(str(file, ": tensor \"", tensor.name, "\" of shape ", tensor.sizes, ": no file holds the box at ", gap->offsets,
                              " of ", gap->sizes));
  }
}

// The text of "content", after its checksum has been compared.
std::string_view checked_content(std::string_view text, const std::string& file) {
  const size_t begin = kPrefix.size() + 16 + kMiddle.size();
  const bool framed = text.size() > begin + kSuffix.size() && text.starts_with(kPrefix) && text.ends_with(kSuffix) &&
                      text.substr(kPrefix.size() + 16, kMiddle.size()) == kMiddle;
  if (!framed) throw CheckpointError(str(file, ": damaged or truncated (", text.size(), " bytes)"));
  const std::string_view content = text.substr(begin, text.size() - begin - kSuffix.size());
  const std::string found = detail::checksum_text(detail::checksum(content));
  const std::string_view expected = text.substr(kPrefix.size(), 16);
  if (found != expected) throw CheckpointError(str(file, ": damaged: checksum ", found, ", expected ", expected));
  return content;
}

}  // namespace

int64_t CheckpointTensor::num_bytes() const { return detail::whole_box(sizes).numel() * static_cast<int64_t>(c10::elementSize(dtype)); }

const CheckpointTensor* CheckpointMetadata::find(const std::string& name) const {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name, [](const auto& tensor, const std::string& key) { return tensor.name < key; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

int64_t CheckpointMetadata::num_bytes() const {
  int64_t total = 0;
  for (const CheckpointTensor& tensor : tensors) total += tensor.num_bytes();
  return total;
}

json CheckpointMetadata::to_json() const {
  json result{{"version", version}, {"num_ranks", num_ranks}, {"files", json::array()}, {"tensors", json::object()}, {"extra", extra}};
  for (const CheckpointFile& file : files) {
    result["files"].push_back(
        {{"name", file.name}, {"num_bytes", file.num_bytes}, {"header_checksum", detail::checksum_text(file.header_checksum)}});
  }
  for (const CheckpointTensor& tensor : tensors) {
    json pieces = json::array();
    for (const CheckpointPiece& piece : tensor.pieces) pieces.push_back(piece_to_json(piece));
    result["tensors"][tensor.name] = {{"dtype", safetensors_name(tensor.dtype)}, {"sizes", tensor.sizes}, {"pieces", std::move(pieces)}};
  }
  return result;
}

std::string format_checkpoint_metadata(const CheckpointMetadata& metadata) {
  std::string content;
  try {
    content = metadata.to_json().dump();
  } catch (const json::exception& error) {
    throw CheckpointError(str("checkpoint metadata: ", error.what()));  // text that is not UTF-8
  }
  return kPrefix + detail::checksum_text(detail::checksum(content)) + kMiddle + content + kSuffix;
}

CheckpointMetadata inspect_checkpoint(const fs::path& name) {
  const fs::path folder = checkpoint_location(name);
  if (!fs::is_directory(folder)) throw CheckpointError(str(folder.string(), ": no such folder"));
  const fs::path path = folder / kCheckpointMetadataFile;
  if (!fs::exists(path)) throw CheckpointError(str(folder.string(), ": not a complete checkpoint: has no ", kCheckpointMetadataFile));
  const std::string file = path.string(), text = detail::read_file(path);
  const std::string_view content = checked_content(text, file);
  CheckpointMetadata metadata;
  try {
    metadata = parse_content(json::parse(content), file);
  } catch (const std::exception& error) {
    if (dynamic_cast<const Error*>(&error) != nullptr) throw;
    throw CheckpointError(str(file, ": damaged: ", error.what()));
  }
  for (const CheckpointTensor& tensor : metadata.tensors) check_tensor(tensor, metadata.files.size(), file);
  return metadata;
}

std::string piece_key(const std::string& name, const std::vector<int64_t>& sizes, const Box& box) {
  if (box == detail::whole_box(sizes)) return name;
  std::string key = name + "[";
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    key += str(dim == 0 ? "" : ", ", box.offsets[dim], ":", box.offsets[dim] + box.sizes[dim]);
  }
  return key + "]";
}

}  // namespace hyper_parallel
