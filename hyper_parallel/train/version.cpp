// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/train/version.h"

#include <c10/core/Allocator.h>
#include <dlfcn.h>
#include <torch/headeronly/version.h>

#include <filesystem>
#include <fstream>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

std::filesystem::path torch_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&c10::GetAllocator), &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::path(info.dli_fname).parent_path().parent_path();
}

std::string first_version_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (path.filename() == "version.py" && !line.starts_with("__version__")) continue;
    const size_t begin = line.find_first_of("0123456789");
    if (begin == std::string::npos) continue;
    return line.substr(begin, line.find_first_not_of("0123456789.", begin) - begin);
  }
  return "";
}

std::string minor_of(const std::string& version) {
  const std::vector<std::string> parts = split(version, '.');
  return parts.size() < 2 ? version : parts[0] + "." + parts[1];
}

}  // namespace

std::string built_torch_version() { return str(TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR, ".", TORCH_VERSION_PATCH); }

std::string loaded_torch_version() {
  const std::filesystem::path folder = torch_folder();
  for (const char* name : {"version.py", "build-version"})
    if (const std::string found = first_version_in(folder / name); !found.empty()) return found;
  return "";
}

std::string version_text() { return str(HYPER_PARALLEL_VERSION, " (libtorch ", built_torch_version(), ")"); }

void check_torch_version() {
  const std::string found = loaded_torch_version();
  if (!found.empty() && minor_of(found) != minor_of(built_torch_version()))
    throw RuntimeError(str("built for libtorch ", minor_of(built_torch_version()), ", found ", found, " in ", torch_folder().string(),
                           ": run it with the libtorch it was built for, or build it anew"));
}

}  // namespace hyper_parallel
