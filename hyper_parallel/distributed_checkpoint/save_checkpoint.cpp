// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <unordered_map>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/log.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"
#include "hyper_parallel/distributed_checkpoint/detail/checksum.h"
#include "hyper_parallel/distributed_checkpoint/detail/exchange.h"
#include "hyper_parallel/distributed_checkpoint/detail/fault_point.h"
#include "hyper_parallel/distributed_checkpoint/detail/files.h"
#include "hyper_parallel/distributed_checkpoint/detail/replaced.h"
#include "hyper_parallel/distributed_checkpoint/detail/safetensors_header.h"
#include "hyper_parallel/distributed_checkpoint/detail/save_plan.h"

namespace hyper_parallel {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct WrittenPiece {
  const detail::PlannedPiece* piece;
  at::Tensor data;
};

// The pieces of this rank with their data, larger element sizes first so that all data is aligned.
std::vector<WrittenPiece> pieces_to_write(const detail::SavePlan& plan, const StateDict& state, int rank) {
  std::unordered_map<std::string, const StateEntry*> entries;
  for (const StateEntry& entry : state) entries.emplace(entry.name, &entry);
  std::vector<WrittenPiece> result;
  for (const detail::PlannedPiece& piece : plan.pieces) {
    if (piece.writer != rank) continue;
    const StateEntry& entry = *entries.at(plan.tensors[piece.tensor].name);
    int64_t begin = 0;
    for (const Box& box : entry.boxes) {
      if (box == piece.box) break;
      begin += box.numel();
    }
    result.push_back({&piece, entry.local.view(-1).narrow(0, begin, piece.box.numel())});
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.data.itemsize() > b.data.itemsize(); });
  return result;
}

std::string rank_file_name(int rank) {
  char name[40];
  std::snprintf(name, sizeof(name), "rank-%05d.safetensors", rank);
  return name;
}

// Writes this rank's file and returns {num_bytes, header_checksum, checksums: [[piece number, checksum]...]}; null if it has nothing to
// write.
json write_rank_file(const fs::path& folder, const detail::SavePlan& plan, const StateDict& state, int rank) {
  const std::vector<WrittenPiece> pieces = pieces_to_write(plan, state, rank);
  if (pieces.empty()) return nullptr;
  std::vector<detail::SafetensorsItem> items;
  for (const WrittenPiece& written : pieces) {
    const detail::PlannedTensor& tensor = plan.tensors[written.piece->tensor];
    items.push_back({piece_key(tensor.name, tensor.sizes, written.piece->box), tensor.dtype, written.piece->box.sizes});
  }
  const std::string header = detail::make_safetensors_header(items, {{"format", "pt"}});
  detail::OutputFile file(folder / rank_file_name(rank));
  json result{{"header_checksum", detail::write_with_checksum(file, header.data(), header.size())}, {"checksums", json::array()}};
  for (const WrittenPiece& written : pieces) {
    const at::Tensor data = written.data.cpu();  // the tensor itself where it is on the CPU
    result["checksums"].push_back(
        {written.piece - plan.pieces.data(), detail::write_with_checksum(file, data.const_data_ptr(), data.nbytes())});
    detail::fault_point("checkpoint.data", rank);
  }
  file.finish();
  file.keep();
  result["num_bytes"] = file.num_bytes();
  return result;
}

CheckpointMetadata make_metadata(const detail::SavePlan& plan, const std::vector<json>& written, const json& extra) {
  CheckpointMetadata metadata;
  metadata.num_ranks = static_cast<int>(written.size());
  metadata.extra = extra;
  std::vector<size_t> file_of(written.size());
  std::vector<uint64_t> checksums(plan.pieces.size());
  for (size_t rank = 0; rank < written.size(); ++rank) {
    if (written[rank].is_null()) continue;
    file_of[rank] = metadata.files.size();
    metadata.files.push_back({rank_file_name(static_cast<int>(rank)), written[rank].at("num_bytes"), written[rank].at("header_checksum")});
    for (const json& entry : written[rank].at("checksums")) checksums.at(entry.at(0)) = entry.at(1);
  }
  for (const detail::PlannedTensor& tensor : plan.tensors) metadata.tensors.push_back({tensor.name, tensor.dtype, tensor.sizes, {}});
  for (size_t index = 0; index < plan.pieces.size(); ++index) {
    const detail::PlannedPiece& piece = plan.pieces[index];
    CheckpointTensor& tensor = metadata.tensors[piece.tensor];
    tensor.pieces.push_back({piece.box, file_of[piece.writer], piece_key(tensor.name, tensor.sizes, piece.box), checksums[index]});
  }
  return metadata;
}

bool is_temporary(const fs::path& path) { return path.filename().string().find(".tmp-") != std::string::npos; }

void remove_leftovers(const fs::path& parent) {
  detail::finish_replacing(parent);
  for (const auto& entry : fs::directory_iterator(parent)) {
    if (!is_temporary(entry.path())) continue;
    log_info("checkpoint: removing ", entry.path().string(), ", left by an interrupted save");
    fs::remove_all(entry.path());
  }
}

// The temporary folder, gone unless it was renamed. Rank 0 owns it.
class TemporarySave {
 public:
  TemporarySave(fs::path path, bool is_owner) : path_(std::move(path)), is_owner_(is_owner) {}
  ~TemporarySave() {
    std::error_code ignored;
    if (is_owner_) fs::remove_all(path_, ignored);
  }
  TemporarySave(const TemporarySave&) = delete;
  TemporarySave& operator=(const TemporarySave&) = delete;
  const fs::path& path() const { return path_; }
  void release() { is_owner_ = false; }

 private:
  fs::path path_;
  bool is_owner_;
};

void create_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw RuntimeError(str("cannot create folder ", path.string(), ": ", error.message()));
}

fs::path prepare_folder(const fs::path& folder) {
  create_folder(folder.parent_path());
  remove_leftovers(folder.parent_path());
  const fs::path temporary = detail::temporary_name(folder);
  create_folder(temporary);
  detail::fault_point("checkpoint.created", 0);
  return temporary;
}

// False where the file system cannot.
bool swap_folders(const fs::path& first, const fs::path& second) {
  if (detail::fault_wanted("checkpoint.no_swap", 0)) return false;
  if (renameat2(AT_FDCWD, first.c_str(), AT_FDCWD, second.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    detail::throw_io_error(str("swap ", first.string(), " and"), second, errno);
  return false;
}

// Puts `temporary` in the place of `folder`; an existing checkpoint of that name is swapped out or steps aside, so that one of the two can
// be found at all times.
void rename_into_place(const fs::path& temporary, const fs::path& folder) {
  if (!fs::exists(folder)) {
    detail::rename_durably(temporary, folder);
    return;
  }
  fs::path old = temporary;
  if (swap_folders(temporary, folder)) {
    detail::sync_folder(folder.parent_path());
  } else {
    old = detail::replaced_name(folder);
    detail::rename_durably(folder, old);
    detail::fault_point("checkpoint.replaced", 0);
    detail::rename_durably(temporary, folder);
  }
  detail::fault_point("checkpoint.swapped", 0);
  detail::remove_checkpoint(old);
}

void commit(TemporarySave& temporary, const fs::path& folder, const CheckpointMetadata& metadata, const SaveOptions& options) {
  const std::string text = format_checkpoint_metadata(metadata);
  detail::fault_point("checkpoint.written", 0);
  detail::OutputFile file(temporary.path() / kCheckpointMetadataFile);
  file.write(text.data(), text.size());
  file.finish();
  file.keep();
  detail::sync_folder(temporary.path());
  detail::fault_point("checkpoint.metadata", 0);
  rename_into_place(temporary.path(), folder);
  temporary.release();
  detail::fault_point("checkpoint.renamed", 0);
  if (options.update_latest) detail::write_file_atomically(folder.parent_path() / "LATEST", folder.filename().string() + "\n");
  detail::fault_point("checkpoint.latest", 0);
}

// After the new checkpoint is in force; a folder that cannot be deleted is no reason to stop.
void delete_old(const fs::path& folder, int keep_last) try {
  std::vector<fs::path> complete = list_checkpoints(folder.parent_path());
  if (keep_last <= 0 || complete.size() <= static_cast<size_t>(keep_last)) return;
  complete.resize(complete.size() - keep_last);
  for (const fs::path& old : complete) {
    if (old.filename() == folder.filename()) continue;
    if (const std::error_code error = detail::remove_checkpoint(old))
      log_warning("checkpoint: cannot delete ", old.string(), ": ", error.message());
  }
} catch (const std::exception& error) {
  log_warning("checkpoint: cannot delete old checkpoints: ", error.what());
}

fs::path without_trailing_slash(const fs::path& folder) {
  const fs::path absolute = fs::absolute(folder).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

}  // namespace

void save_checkpoint(const ProcessGroup& group, const fs::path& folder_name, const CheckpointState& state, const SaveOptions& options) {
  const fs::path folder = without_trailing_slash(folder_name);
  const std::string action = str("saving checkpoint ", folder.string());
  const bool is_first = group.rank() == 0;
  // The owner is set before the ranks agree: whatever fails from here on, the folder goes.
  std::optional<TemporarySave> temporary;
  std::vector<json> begun = detail::run_on_all(group, action, [&]() -> json {
    json result{{"state", detail::describe_state(state.tensors)}};
    if (is_first) {
      temporary.emplace(prepare_folder(folder), true);
      result["folder"] = temporary->path().string();
    }
    return result;
  });
  if (!is_first) temporary.emplace(begun[0].at("folder").get<std::string>(), false);
  std::vector<json> descriptions;
  for (json& entry : begun) descriptions.push_back(std::move(entry["state"]));
  const detail::SavePlan plan = detail::make_save_plan(descriptions);
  const std::vector<json> written =
      detail::run_on_all(group, action, [&]() -> json { return write_rank_file(temporary->path(), plan, state.tensors, group.rank()); });
  detail::run_on_all(group, action, [&]() -> json {
    if (is_first) commit(*temporary, folder, make_metadata(plan, written, state.extra), options);
    return nullptr;
  });
  if (is_first && options.keep_last > 0) delete_old(folder, options.keep_last);
}

}  // namespace hyper_parallel
