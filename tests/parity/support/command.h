// SPDX-License-Identifier: Apache-2.0
// Runs the scripts of this folder, in the project's own environment.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "tests/support/program.h"

namespace hyper_parallel::test {

inline constexpr std::chrono::seconds kCommandLimit{250};

// `script`: relative to tests/parity.
inline Outcome run_python(const std::string& script, std::vector<std::string> arguments) {
  const std::filesystem::path root = source_root();
  arguments.insert(arguments.begin(), {(root / ".venv/bin/python").string(), (root / "tests/parity" / script).string()});
  return run_program(std::move(arguments), kCommandLimit);
}

}  // namespace hyper_parallel::test
