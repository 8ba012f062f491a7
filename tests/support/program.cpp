// SPDX-License-Identifier: Apache-2.0
#include "tests/support/program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace hyper_parallel::test {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

void become_program(std::vector<std::string> argv, const std::vector<std::string>& environment) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const std::string& item : environment) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos)
      unsetenv(item.c_str());
    else
      setenv(item.substr(0, equals).c_str(), item.substr(equals + 1).c_str(), 1);
  }
  std::vector<char*> arguments;
  for (std::string& argument : argv) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

Program::Program(std::vector<std::string> argv, std::vector<std::string> environment) : start_(Clock::now()) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  std::fflush(nullptr);
  process_ = fork();
  if (process_ == 0) {
    setpgid(0, 0);
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    become_program(std::move(argv), environment);
  }
  close(ends[1]);
  pipe_ = ends[0];
}

Program::~Program() {
  if (process_ > 0) finish(milliseconds(0));
  close(pipe_);
}

bool Program::read_some(milliseconds limit) {
  pollfd poll_pipe{pipe_, POLLIN, 0};
  if (poll(&poll_pipe, 1, int(std::max<int64_t>(0, limit.count()))) <= 0) return false;
  char buffer[4096];
  const ssize_t count = read(pipe_, buffer, sizeof buffer);
  if (count <= 0) return false;
  output_.append(buffer, size_t(count));
  return true;
}

bool Program::await_output(const std::string& text, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (output_.find(text) == std::string::npos)
    if (!read_some(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()))) return false;
  return true;
}

Outcome Program::finish(milliseconds limit) {
  Outcome outcome;
  const auto deadline = Clock::now() + limit;
  while (read_some(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()))) {
  }
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(process_, &status, WNOHANG)) == 0 && Clock::now() < deadline) usleep(2000);
  if (ended == 0) {
    outcome.timed_out = true;
    kill(-process_, SIGKILL);
    waitpid(process_, &status, 0);
  }
  process_ = -1;
  outcome.took = std::chrono::duration_cast<milliseconds>(Clock::now() - start_);
  outcome.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  outcome.output = output_;
  return outcome;
}

Outcome run_program(std::vector<std::string> argv, milliseconds limit, std::vector<std::string> environment) {
  return Program(std::move(argv), std::move(environment)).finish(limit);
}

std::filesystem::path path_from(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) throw std::runtime_error(std::string(variable) + " is not set: run the tests with ctest");
  return value;
}

std::filesystem::path source_root() { return path_from("HYPER_PARALLEL_SOURCE"); }

}  // namespace hyper_parallel::test
