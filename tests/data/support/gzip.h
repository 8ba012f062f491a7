// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <zlib.h>

#include <filesystem>
#include <string>

namespace hyper_parallel::testing_support {

// Returns `path`.
inline std::filesystem::path write_gzip(const std::filesystem::path& path, const std::string& text) {
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  return path;
}

}  // namespace hyper_parallel::testing_support
