// SPDX-License-Identifier: Apache-2.0
// Text files as one run of bytes.
//
//   Text text = read_text({.paths = {"corpus/*.txt", "/usr/share/dictd/gcide.dict.dz"}, .max_bytes = 1 << 20});
//
// Files named .gz or .dz (dictzip) are unpacked. Patterns are taken in the order given, the files of a pattern sorted by name; a file that
// two patterns match is read once. DataError: a pattern that matches no file, an unreadable or damaged file (which one, why), no text at
// all.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hyper_parallel {

struct TextOptions {
  std::vector<std::string> paths;    // files, or globs with * ? [...]
  std::optional<int64_t> max_bytes;  // of the whole text; reading stops there
  std::string separator = "\n";      // between two files
};

// A view with its owner: the mapping of a single plain file, else memory.
struct Text {
  std::string_view bytes;
  std::shared_ptr<const void> owner;
};

std::vector<std::filesystem::path> expand_paths(const std::vector<std::string>& patterns);
Text read_text(const TextOptions& options);

}  // namespace hyper_parallel
