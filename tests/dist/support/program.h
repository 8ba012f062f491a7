// SPDX-License-Identifier: Apache-2.0
// Runs a program with a time limit and captures what it prints.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace hyper_parallel::test {

struct Outcome {
  int exit_code = -1;      // 128 + signal if it was killed
  bool timed_out = false;  // it was killed for that
  std::string output;      // standard output and error
  std::chrono::milliseconds took{0};
};

class Program {
 public:
  Program(std::vector<std::string> argv, std::vector<std::string> environment = {});  // NAME=value, or NAME to unset
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

}  // namespace hyper_parallel::test
