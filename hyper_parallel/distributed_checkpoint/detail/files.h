// SPDX-License-Identifier: Apache-2.0
// Durable files: every step checks its result, and names the path and the system's reason when it fails (RuntimeError).
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace hyper_parallel::detail {

[[noreturn]] void throw_io_error(const std::string& action, const std::filesystem::path& path, int error_number);

// Written front to back, then finished, then kept or renamed. A file that was neither when destroyed (an exception on the way) is removed.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);  // created or truncated
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(const void* data, size_t num_bytes);
  void finish();  // syncs and closes
  void keep() { is_kept_ = true; }
  void rename_to(const std::filesystem::path& path);  // durably; path() is then the new name
  const std::filesystem::path& path() const { return path_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  bool is_kept_ = false;
  int64_t num_bytes_ = 0;
};

// Read-only: mapped, with the descriptor kept for large reads (which then need no page table entries).
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // CheckpointError if it cannot be opened
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const std::byte* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }
  void read(int64_t offset, void* destination, int64_t num_bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t num_bytes_ = 0;
  const std::byte* data_ = nullptr;
};

void sync_folder(const std::filesystem::path& folder);  // makes renames and new files inside it durable
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);  // temporary name, sync, rename
std::string read_file(const std::filesystem::path& path);                              // CheckpointError if it cannot be read
// Beside `path`, unique to this process and call: `path` with `mark` and numbers behind it.
std::filesystem::path unique_name(const std::filesystem::path& path, const char* mark);
std::filesystem::path temporary_name(const std::filesystem::path& path);  // the mark is ".tmp-"

}  // namespace hyper_parallel::detail
