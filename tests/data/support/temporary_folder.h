// SPDX-License-Identifier: Apache-2.0
// A fresh folder with text files, removed with all that is in it.
#pragma once
#include <stdlib.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace hyper_parallel::testing_support {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "hyper_parallel_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }
  std::string write_gzip(const std::string& name, const std::string& text) const {
    const gzFile file = gzopen((path_ / name).c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

// The message of the error that `call` throws, "" if it throws none.
template <class Error, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace hyper_parallel::testing_support
