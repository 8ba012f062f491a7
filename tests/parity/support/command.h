// SPDX-License-Identifier: Apache-2.0
// Runs the scripts of this folder, in the project's own environment.
#pragma once
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "hyper_parallel/base/string.h"

namespace hyper_parallel::testing_support {

// The checkout.
inline std::filesystem::path source_root() {
  const char* given = std::getenv("HYPER_PARALLEL_SOURCE");
  return given != nullptr ? std::filesystem::path(given) : std::filesystem::current_path();
}

// A shell command, ended after 250 s; its exit status, -1 if it was killed. What it printed goes to `log` and `output`.
inline int run_command(const std::string& command, const std::filesystem::path& log, std::string& output) {
  const int status = std::system(hyper_parallel::str("timeout 250 ", command, " > ", log.string(), " 2>&1").c_str());
  std::ifstream file(log);
  output.assign(std::istreambuf_iterator<char>(file), {});
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// `script`: relative to tests/parity.
inline int run_python(const std::string& script, const std::string& arguments, const std::filesystem::path& log, std::string& output) {
  const std::filesystem::path root = source_root();
  return run_command(
      hyper_parallel::str((root / ".venv/bin/python").string(), " ", (root / "tests/parity" / script).string(), " ", arguments), log,
      output);
}

}  // namespace hyper_parallel::testing_support
