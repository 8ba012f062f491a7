// SPDX-License-Identifier: Apache-2.0
// Runs a program with a time limit and captures what it prints.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace hyper_parallel::test {

struct Outcome {
  int exit_code = -1;      // 128 + signal if it was killed
  bool timed_out = false;  // it was killed for that
  std::string output;      // standard output and error
  std::chrono::milliseconds took{0};
};

// Ends, with the parent too, in the program: for the child of a fork. NAME=value, or NAME to unset.
[[noreturn]] void become_program(std::vector<std::string> argv, const std::vector<std::string>& environment);

class Program {
 public:
  Program(std::vector<std::string> argv, std::vector<std::string> environment = {});
  ~Program();
  pid_t process() const { return process_; }
  bool await_output(const std::string& text, std::chrono::milliseconds limit);
  Outcome finish(std::chrono::milliseconds limit);

 private:
  bool read_some(std::chrono::milliseconds limit);  // false at the end or after the limit
  std::chrono::steady_clock::time_point start_;
  pid_t process_ = -1;
  int pipe_ = -1;
  std::string output_;
};

Outcome run_program(std::vector<std::string> argv, std::chrono::milliseconds limit, std::vector<std::string> environment = {});

// A path in the environment, which ctest sets; std::runtime_error without it.
std::filesystem::path path_from(const char* variable);
std::filesystem::path source_root();  // HYPER_PARALLEL_SOURCE

}  // namespace hyper_parallel::test
