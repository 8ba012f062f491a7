// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/detail/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::detail {

namespace fs = std::filesystem;

void throw_io_error(const std::string& action, const fs::path& path, int error_number) {
  throw RuntimeError(str("cannot ", action, " ", path.string(), ": ", std::generic_category().message(error_number)));
}

OutputFile::OutputFile(fs::path path) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_io_error("create", path_, errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!is_kept_) unlink(path_.c_str());
}

void OutputFile::write(const void* data, size_t num_bytes) {
  constexpr size_t kMaxBytes = size_t{1} << 30;  // write() takes at most 2 GiB
  const char* next = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, std::min(num_bytes, kMaxBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_io_error("write", path_, errno);
    next += written;
    num_bytes -= written;
    num_bytes_ += written;
  }
}

void OutputFile::finish() {
  if (fsync(descriptor_) != 0) throw_io_error("sync", path_, errno);
  if (close(std::exchange(descriptor_, -1)) != 0) throw_io_error("close", path_, errno);
}

void OutputFile::rename_to(const fs::path& path) {
  rename_durably(path_, path);
  path_ = path;
  keep();
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw CheckpointError(str(path.string(), ": cannot be opened: ", std::strerror(errno)));
  struct stat status {};
  fstat(descriptor_, &status);
  num_bytes_ = S_ISREG(status.st_mode) ? status.st_size : 0;
  if (num_bytes_ == 0) return;
  void* address = mmap(nullptr, num_bytes_, PROT_READ, MAP_SHARED, descriptor_, 0);
  if (address == MAP_FAILED) {
    const int error_number = errno;
    close(descriptor_);
    throw_io_error("map", path, error_number);
  }
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), num_bytes_);
  close(descriptor_);
}

void MappedFile::read(int64_t offset, void* destination, int64_t num_bytes) const {
  HYPER_PARALLEL_CHECK(offset >= 0 && num_bytes >= 0 && offset + num_bytes <= num_bytes_, path_.string(), " ", offset, " ", num_bytes);
  constexpr int64_t kSmallBytes = 64 << 10;
  if (num_bytes <= kSmallBytes) {
    if (num_bytes > 0) std::memcpy(destination, data_ + offset, num_bytes);
    return;
  }
  char* next = static_cast<char*>(destination);
  while (num_bytes > 0) {
    const ssize_t got = pread(descriptor_, next, std::min<int64_t>(num_bytes, int64_t{1} << 30), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_io_error("read", path_, errno);
    if (got == 0) throw CheckpointError(str(path_.string(), ": became shorter while it was read, at byte ", offset));
    next += got;
    offset += got;
    num_bytes -= got;
  }
}

void sync_folder(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_io_error("open", folder, errno);
  const int result = fsync(descriptor);
  const int error_number = errno;
  close(descriptor);
  if (result != 0 && error_number != EINVAL) throw_io_error("sync", folder, error_number);  // EINVAL: the file system cannot
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (rename(from.c_str(), to.c_str()) != 0) throw_io_error(str("rename ", from.string(), " to"), to, errno);
  sync_folder(to.has_parent_path() ? to.parent_path() : fs::path("."));
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  OutputFile file(temporary_name(path));
  file.write(text.data(), text.size());
  file.finish();
  file.rename_to(path);
}

std::string read_file(const fs::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.num_bytes())};
}

fs::path unique_name(const fs::path& path, const char* mark) {
  static std::atomic<int> counter{0};
  fs::path name = path;
  name += str(mark, getpid(), "-", counter++);
  return name;
}

fs::path temporary_name(const fs::path& path) { return unique_name(path, ".tmp-"); }

}  // namespace hyper_parallel::detail
