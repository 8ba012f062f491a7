// SPDX-License-Identifier: Apache-2.0
// What is in a folder of checkpoints, and whether it is sound.
#include <algorithm>
#include <cstdio>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"
#include "hyper_parallel/distributed_checkpoint/detail/checksum.h"
#include "hyper_parallel/distributed_checkpoint/detail/files.h"
#include "hyper_parallel/distributed_checkpoint/detail/replaced.h"

namespace hyper_parallel {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";

// The number of "step-<digits>", -1 for any other name.
int64_t step_of(const std::string& name) {
  if (!name.starts_with(kStepPrefix) || name.size() == kStepPrefix.size() || name.size() > kStepPrefix.size() + 18) return -1;
  const std::string digits = name.substr(kStepPrefix.size());
  return std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }) ? std::stoll(digits) : -1;
}

std::string complete_names(const fs::path& checkpoints) {
  std::vector<std::string> names;
  for (const fs::path& folder : list_checkpoints(checkpoints)) names.push_back(folder.filename().string());
  return names.empty() ? "it has no complete checkpoint" : str("complete checkpoints: ", names);
}

void verify_pieces(const CheckpointMetadata& metadata, size_t index, const SafetensorsFile& file, std::vector<std::string>& problems) {
  size_t num_pieces = 0;
  for (const CheckpointTensor& tensor : metadata.tensors) {
    for (const CheckpointPiece& piece : tensor.pieces) {
      if (piece.file != index) continue;
      ++num_pieces;
      const auto found = file.tensors().find(piece.key);
      if (found == file.tensors().end()) {
        problems.push_back(str(file.path().string(), ": tensor \"", piece.key, "\" is missing"));
      } else if (found->second.dtype != tensor.dtype || found->second.sizes != piece.box.sizes) {
        problems.push_back(
            str(file.path().string(), ": tensor \"", piece.key, "\" has another shape or dtype than ", kCheckpointMetadataFile, " says"));
      } else if (detail::checksum(file.bytes(piece.key)) != piece.checksum) {
        problems.push_back(str(file.path().string(), ": tensor \"", piece.key, "\": damaged: wrong checksum"));
      }
    }
  }
  if (file.tensors().size() > num_pieces) {
    problems.push_back(str(file.path().string(), ": has ", file.tensors().size() - num_pieces, " tensors that ", kCheckpointMetadataFile,
                           " does not name"));
  }
}

void verify_file(const fs::path& folder, const CheckpointMetadata& metadata, size_t index, std::vector<std::string>& problems) {
  const CheckpointFile& expected = metadata.files[index];
  const fs::path path = folder / expected.name;
  std::error_code error;
  const auto num_bytes = fs::file_size(path, error);
  if (error) {
    problems.push_back(str(path.string(), ": ", error.message()));
    return;
  }
  if (num_bytes != static_cast<uint64_t>(expected.num_bytes)) {
    problems.push_back(str(path.string(), ": ", num_bytes, " bytes, expected ", expected.num_bytes));
    return;
  }
  try {
    const SafetensorsFile file(path);
    if (detail::checksum(file.header_bytes()) != expected.header_checksum)
      problems.push_back(str(path.string(), ": damaged header: wrong checksum"));
    verify_pieces(metadata, index, file, problems);
  } catch (const CheckpointError& damaged) {
    problems.push_back(damaged.what());
  }
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%06lld", static_cast<long long>(step));
  return name;
}

std::vector<fs::path> list_checkpoints(const fs::path& checkpoints) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(checkpoints, error)) {
    const std::string name = entry.path().filename().string(), before = detail::name_before_replacing(name);
    if (!before.empty() && fs::exists(checkpoints / before)) continue;
    const int64_t step = step_of(before.empty() ? name : before);
    if (step >= 0 && fs::exists(entry.path() / kCheckpointMetadataFile)) found.emplace_back(step, entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> result;
  for (auto& [step, path] : found) result.push_back(std::move(path));
  return result;
}

fs::path latest_checkpoint(const fs::path& checkpoints) {
  const fs::path latest = checkpoints / "LATEST";
  if (!fs::is_directory(checkpoints)) throw CheckpointError(str(checkpoints.string(), ": no such folder"));
  if (!fs::exists(latest)) throw CheckpointError(str(latest.string(), ": no such file; ", complete_names(checkpoints)));
  std::string name = detail::read_file(latest);
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) name.pop_back();
  const bool plain = !name.empty() && name.size() < 256 && name != "." && name != ".." && name.find_first_of("/\n") == std::string::npos &&
                     name.find('\0') == std::string::npos;
  if (!plain) throw CheckpointError(str(latest.string(), ": damaged: must be the name of one folder; ", complete_names(checkpoints)));
  const fs::path folder = checkpoint_location(checkpoints / name);
  if (!fs::exists(folder / kCheckpointMetadataFile)) {
    throw CheckpointError(str(latest.string(), ": names ", name, ", which is ", fs::exists(folder) ? "not complete" : "missing", "; ",
                              complete_names(checkpoints)));
  }
  return folder;
}

std::vector<std::string> verify_checkpoint(const fs::path& name) {
  const fs::path folder = checkpoint_location(name);
  std::vector<std::string> problems;
  try {
    const CheckpointMetadata metadata = inspect_checkpoint(folder);
    for (size_t index = 0; index < metadata.files.size(); ++index) verify_file(folder, metadata, index, problems);
  } catch (const Error& error) {
    problems.push_back(error.what());
  }
  return problems;
}

}  // namespace hyper_parallel
