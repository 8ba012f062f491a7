// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/detail/replaced.h"

#include <string_view>
#include <vector>

#include "hyper_parallel/base/log.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"
#include "hyper_parallel/distributed_checkpoint/detail/files.h"

namespace hyper_parallel {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".replaced-";

bool is_complete(const fs::path& folder) { return fs::exists(folder / kCheckpointMetadataFile); }

}  // namespace

namespace detail {

fs::path replaced_name(const fs::path& folder) { return unique_name(folder, kMark.data()); }

std::string name_before_replacing(const std::string& name) {
  const size_t mark = name.rfind(kMark);
  if (mark == std::string::npos || name.find_first_not_of("0123456789-", mark + kMark.size()) != std::string::npos) return "";
  return name.substr(0, mark);
}

void finish_replacing(const fs::path& parent) {
  std::vector<fs::path> aside;
  for (const auto& entry : fs::directory_iterator(parent)) {
    if (!name_before_replacing(entry.path().filename().string()).empty()) aside.push_back(entry.path());
  }
  for (const fs::path& old : aside) {
    const fs::path folder = parent / name_before_replacing(old.filename().string());
    if (is_complete(old) && !fs::exists(folder)) {
      log_info("checkpoint: renaming ", old.string(), " back to ", folder.filename().string(), ": its replacement was interrupted");
      rename_durably(old, folder);
    } else if (const std::error_code error = remove_checkpoint(old)) {
      log_warning("checkpoint: cannot delete ", old.string(), ": ", error.message());
    }
  }
}

std::error_code remove_checkpoint(const fs::path& folder) {
  std::error_code error;
  fs::remove(folder / kCheckpointMetadataFile, error);
  fs::remove_all(folder, error);
  return error;
}

}  // namespace detail

fs::path checkpoint_location(const fs::path& folder) {
  const fs::path plain = folder.has_filename() ? folder : folder.parent_path();
  if (fs::exists(folder)) return folder;
  fs::path found = folder;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(plain.has_parent_path() ? plain.parent_path() : fs::path("."), error)) {
    const bool fits = detail::name_before_replacing(entry.path().filename().string()) == plain.filename() && is_complete(entry.path());
    if (fits && (found == folder || entry.path() < found)) found = entry.path();  // the same one on every rank
  }
  return found;
}

}  // namespace hyper_parallel
