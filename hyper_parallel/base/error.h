// SPDX-License-Identifier: Apache-2.0
// Errors, and the check macro. Who is at fault decides the type, the type decides the exit code:
//
//   ConfigError, DataError, CheckpointError, LayoutError   the user's input; exit code 2
//   CollectiveError, RuntimeError                          a failure at run time; exit code 1
//   InternalError (HYPER_PARALLEL_CHECK)                   our own broken invariant; exit code 1
//
// A message says what, where (key path, file and line, rank, op) and what would be allowed. It has no trailing full stop or newline.
#pragma once
#include <stdexcept>
#include <string>

#include "hyper_parallel/base/string.h"

namespace hyper_parallel {

class Error : public std::runtime_error {
 public:
  Error(int exit_code, const std::string& message) : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

#define HYPER_PARALLEL_DEFINE_ERROR(name, exit_code)                         \
  class name : public Error {                                                \
   public:                                                                   \
    explicit name(const std::string& message) : Error(exit_code, message) {} \
  }

HYPER_PARALLEL_DEFINE_ERROR(ConfigError, 2);      // YAML, flags, environment
HYPER_PARALLEL_DEFINE_ERROR(DataError, 2);        // data files, tokenizers
HYPER_PARALLEL_DEFINE_ERROR(CheckpointError, 2);  // missing, damaged or unfitting checkpoints and model folders
HYPER_PARALLEL_DEFINE_ERROR(LayoutError, 2);      // meshes, placements, ops without a rule
HYPER_PARALLEL_DEFINE_ERROR(CollectiveError, 1);  // time-out, mismatch, a rank that died
HYPER_PARALLEL_DEFINE_ERROR(RuntimeError, 1);     // I/O while running, NaN loss
HYPER_PARALLEL_DEFINE_ERROR(InternalError, 1);

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);

// An invariant of ours, never user input. The message's parts are only formatted on failure.
#define HYPER_PARALLEL_CHECK(condition, ...)                                                              \
  do {                                                                                                    \
    if (!(condition)) [[unlikely]]                                                                        \
      ::hyper_parallel::check_failed(#condition, __FILE__, __LINE__, ::hyper_parallel::str(__VA_ARGS__)); \
  } while (false)

}  // namespace hyper_parallel
namespace hp = hyper_parallel;
