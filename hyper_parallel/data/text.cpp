// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/data/text.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockBytes = int64_t{1} << 20;

bool is_compressed(const fs::path& path) { return path.extension() == ".gz" || path.extension() == ".dz"; }

[[noreturn]] void throw_unreadable(const fs::path& path, const std::string& reason) { throw DataError(str(path.string(), ": ", reason)); }

// Files that one pattern matches, sorted by name. A name without wildcards stands for itself.
std::vector<fs::path> expand_pattern(const std::string& pattern) {
  std::error_code error;
  const bool there = fs::exists(pattern, error);
  if (error) throw_unreadable(pattern, error.message());
  if (pattern.find_first_of("*?[") == std::string::npos || there) {
    if (!there) throw_unreadable(pattern, "no such file");
    return {pattern};
  }
  glob_t matches{};
  const int result = glob(pattern.c_str(), 0, nullptr, &matches);
  std::vector<fs::path> files;
  for (size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) {
    if (fs::is_regular_file(matches.gl_pathv[i])) files.emplace_back(matches.gl_pathv[i]);
  }
  globfree(&matches);
  if (files.empty()) throw DataError(str("pattern ", pattern, " matches no file"));
  std::sort(files.begin(), files.end());  // by bytes, whatever the locale
  return files;
}

struct PlainFile {
  explicit PlainFile(const fs::path& path) : descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor < 0) throw_unreadable(path, std::strerror(errno));
  }
  ~PlainFile() { close(descriptor); }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;
  int descriptor;
};

// Appends at most `limit` bytes of the file, `read_some(destination, bytes)` at a time; it returns 0 at the end.
template <class ReadSome>
void append_blocks(std::string& text, int64_t limit, const ReadSome& read_some) {
  while (limit > 0) {
    const size_t before = text.size();
    const int64_t block = std::min(limit, kBlockBytes);
    text.resize(before + block);
    const int64_t got = read_some(text.data() + before, block);
    text.resize(before + got);
    if (got == 0) return;
    limit -= got;
  }
}

void append_plain(std::string& text, const fs::path& path, int64_t limit) {
  const PlainFile file(path);
  text.reserve(text.size() + std::min<int64_t>(limit, static_cast<int64_t>(fs::file_size(path))) + kBlockBytes);
  append_blocks(text, limit, [&](char* destination, int64_t num_bytes) {
    ssize_t got;
    do got = read(file.descriptor, destination, num_bytes);
    while (got < 0 && errno == EINTR);
    if (got < 0) throw_unreadable(path, std::strerror(errno));
    return static_cast<int64_t>(got);
  });
}

void append_compressed(std::string& text, const fs::path& path, int64_t limit) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) throw_unreadable(path, std::strerror(errno));
  gzbuffer(file.get(), 256 << 10);
  if (gzdirect(file.get()) != 0) throw_unreadable(path, "not a gzip file");
  append_blocks(text, limit, [&](char* destination, int64_t num_bytes) {
    const int got = gzread(file.get(), destination, static_cast<unsigned>(num_bytes));
    int error = Z_OK;
    const char* reason = gzerror(file.get(), &error);
    if (got < 0 || (error != Z_OK && error != Z_STREAM_END)) throw_unreadable(path, str("damaged or truncated gzip file: ", reason));
    return static_cast<int64_t>(got);
  });
}

// A single plain file needs no copy.
Text map_file(const fs::path& path, int64_t limit) {
  const PlainFile file(path);
  const size_t num_bytes = std::min<int64_t>(limit, static_cast<int64_t>(fs::file_size(path)));
  if (num_bytes == 0) return {};
  void* address = mmap(nullptr, num_bytes, PROT_READ, MAP_PRIVATE, file.descriptor, 0);
  if (address == MAP_FAILED) throw_unreadable(path, std::strerror(errno));
  return {{static_cast<const char*>(address), num_bytes}, {address, [num_bytes](void* mapped) { munmap(mapped, num_bytes); }}};
}

}  // namespace

std::vector<fs::path> expand_paths(const std::vector<std::string>& patterns) {
  std::vector<fs::path> files;
  std::set<fs::path> seen;
  for (const std::string& pattern : patterns) {
    for (fs::path& file : expand_pattern(pattern)) {
      if (!fs::is_regular_file(file)) throw_unreadable(file, "not a file");
      if (seen.insert(fs::weakly_canonical(file)).second) files.push_back(std::move(file));
    }
  }
  return files;
}

Text read_text(const TextOptions& options) {
  const std::vector<fs::path> files = expand_paths(options.paths);
  const int64_t limit = options.max_bytes.value_or(INT64_MAX);
  Text text;
  if (files.size() == 1 && !is_compressed(files[0])) {
    text = map_file(files[0], limit);
  } else {
    auto owned = std::make_shared<std::string>();
    for (const fs::path& file : files) {
      if (file != files.front()) owned->append(options.separator);
      const int64_t rest = limit - static_cast<int64_t>(owned->size());
      if (rest <= 0) break;
      if (is_compressed(file))
        append_compressed(*owned, file, rest);
      else
        append_plain(*owned, file, rest);
    }
    if (static_cast<int64_t>(owned->size()) > limit) owned->resize(limit);
    text = {*owned, owned};
  }
  if (text.bytes.empty()) throw DataError(str("no text: ", files.size(), " files (", options.paths, ") with 0 bytes"));
  return text;
}

}  // namespace hyper_parallel
