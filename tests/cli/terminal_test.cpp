// SPDX-License-Identifier: Apache-2.0
// What a training run shows: a bar on a terminal, plain lines elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <regex>

#include "tests/cli/support/run.h"

namespace hyper_parallel {
namespace {

using namespace test;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

// `hyper-parallel ARGUMENTS...` with a pseudo-terminal as its standard output and error. `then` is called once, when `text` has been shown.
Outcome on_terminal(const Strings& arguments, const std::string& text = "", const std::function<void(pid_t)>& then = {}) {
  int terminal = -1;
  Strings argv = {binary()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const pid_t process = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (process == 0) become_program(std::move(argv), environment());
  Outcome outcome;
  bool called = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  char buffer[4096];
  for (pollfd ready{terminal, POLLIN, 0}; std::chrono::steady_clock::now() < deadline;) {
    if (poll(&ready, 1, 100) <= 0) continue;
    const ssize_t count = read(terminal, buffer, sizeof buffer);
    if (count <= 0) break;  // EIO: the last one has closed it
    outcome.output.append(buffer, size_t(count));
    if (!called && then && outcome.output.find(text) != std::string::npos) called = true, then(process);
  }
  kill(-process, SIGKILL);  // of a process that has ended nothing is left to kill
  int status = 0;
  waitpid(process, &status, 0);
  close(terminal);
  outcome.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return outcome;
}

// The lines of a terminal's output, each without its end, colours and what was cleared.
Strings lines_of(const std::string& output) {
  constexpr std::string_view kClear = "\r\033[K";
  const std::string text = std::regex_replace(output, std::regex("\033\\[[0-9;]*m"), "");
  Strings lines;
  size_t begin = 0;
  for (size_t end; (end = text.find("\r\n", begin)) != std::string::npos; begin = end + 2) {
    const std::string line = text.substr(begin, end - begin);
    const size_t cleared = line.rfind(kClear);
    lines.push_back(cleared == std::string::npos ? line : line.substr(cleared + kClear.size()));
  }
  EXPECT_EQ(begin, text.size()) << "the last line has no end: " << output;
  return lines;
}

// Every "error: " begins a line.
void expect_errors_on_their_own_lines(const Outcome& outcome) {
  size_t num_errors = 0;
  for (const std::string& line : lines_of(outcome.output)) {
    num_errors += line.starts_with("error: ");
    EXPECT_TRUE(line.starts_with("error: ") || line.find("error: ") == std::string::npos) << outcome.output;
  }
  EXPECT_GE(num_errors, 1u) << outcome.output;
}

class Bar : public testing::TestWithParam<const char*> {};

// Steps overwrite one line, which the end of the run ends.
TEST_P(Bar, OnATerminal) {
  const TrainFolder folder;
  const Outcome outcome = on_terminal(folder.arguments("out", {"--rank-mode", GetParam(), "--training.eval_steps=6"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const Strings lines = lines_of(outcome.output);
  ASSERT_EQ(lines.size(), 2u) << outcome.output;
  EXPECT_THAT(lines[0], HasSubstr(" parameters on 2 ranks"));
  size_t at = 0;
  for (const char* shown :
       {"\r[####--------------------] 1/6  loss ", "\r[########----------------] 2/6  loss ", "\r[############------------] 3/6  loss ",
        "\r[################--------] 4/6  loss ", "\r[####################----] 5/6  loss ", "\r[########################] 6/6  loss "}) {
    at = lines[1].find(shown, at);
    ASSERT_NE(at, std::string::npos) << shown << " in " << outcome.output;
  }
  EXPECT_EQ(std::count(lines[1].begin(), lines[1].end(), '\r'), 6);
  EXPECT_THAT(lines[1].substr(at), HasSubstr("  val_loss "));
  EXPECT_THAT(outcome.output, Not(HasSubstr("step 1/6")));
}

// Whatever ends the run, its message has a line of its own.
TEST_P(Bar, AnErrorGetsItsOwnLine) {
  const TrainFolder folder;
  const Outcome outcome = on_terminal(folder.arguments(
      "out", {"--rank-mode", GetParam(), "--optimizer.lr=1e30", "--lr_scheduler.warmup_iters=0", "--training.max_grad_norm=0"}));
  EXPECT_EQ(outcome.exit_code, 1);
  expect_errors_on_their_own_lines(outcome);
}

INSTANTIATE_TEST_SUITE_P(Modes, Bar, testing::Values("threads", "processes"), [](const auto& info) { return std::string(info.param); });

// The rank that draws the bar can't end it; the others and the launcher speak.
TEST(KilledBar, GivesWayToTheErrors) {
  const TrainFolder folder;
  const Strings arguments = folder.arguments("out", {"--rank-mode=processes", "--training.train_iters=100000"});
  const Outcome outcome = on_terminal(arguments, " 4/100000  ", [](pid_t process) { kill(children_of(process).at(0), SIGKILL); });
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("was killed by signal 9"));
  expect_errors_on_their_own_lines(outcome);
}

TEST(Lines, OnAPipe) {
  const TrainFolder folder;
  const Outcome outcome = folder.train("out");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("\r")));
  EXPECT_THAT(outcome.output, Not(HasSubstr("\033")));
  for (int step = 1; step <= 6; ++step)
    EXPECT_THAT(outcome.output, HasSubstr("\nstep " + std::to_string(step) + "/6  loss ")) << outcome.output;
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 7);
  EXPECT_THAT(outcome.output, EndsWith("\n"));
}

}  // namespace
}  // namespace hyper_parallel
