// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/launcher.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/log.h"
#include "hyper_parallel/collectives/detail/store.h"

namespace hyper_parallel {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Child {
  pid_t process = -1;
  bool running = true;
  int status = 0;  // of waitpid
};

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options) : options_(options), children_(options.num_ranks) {}

  int run() {
    socket_ = detail::listen_on("127.0.0.1", 0);
    sigset_t watched = watched_signals();
    pthread_sigmask(SIG_BLOCK, &watched, &old_signals_);  // also for the store's thread
    std::fflush(nullptr);
    parent_ = getpid();
    for (int rank = 0; rank < options_.num_ranks; ++rank) start(rank);
    const auto store = detail::Store::serve(socket_.descriptor, socket_.port, std::chrono::minutes(10));
    while (any_running()) {
      wait_for_signal(watched);
      reap();
      if (deadline_ && Clock::now() >= *deadline_) kill_all(SIGKILL);
    }
    pthread_sigmask(SIG_SETMASK, &old_signals_, nullptr);
    return report();
  }

 private:
  void start(int rank) {
    const pid_t process = fork();
    if (process < 0) {
      const int error = errno;
      kill_all(SIGKILL);
      throw RuntimeError(str("fork: ", std::strerror(error)));
    }
    if (process == 0) become(rank);
    children_[rank].process = process;
  }

  [[noreturn]] void become(int rank) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent_) _exit(1);
    setpgid(0, 0);  // a terminal's Ctrl-C comes once, from the parent
    close(socket_.descriptor);
    pthread_sigmask(SIG_SETMASK, &old_signals_, nullptr);
    const std::pair<const char*, std::string> variables[] = {
        {"RANK", str(rank)},
        {"WORLD_SIZE", str(options_.num_ranks)},
        {"LOCAL_RANK", str(rank)},
        {"LOCAL_WORLD_SIZE", str(options_.num_ranks)},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", str(socket_.port)},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},  // torchrun's way of saying that the parent serves the store
        {"TORCHELASTIC_RESTART_COUNT", "0"},
    };
    for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
    if (!options_.child) execute();
    const int code = call_child(rank);
    std::fflush(nullptr);
    _exit(code);
  }

  [[noreturn]] void execute() {
    std::vector<char*> argv;
    for (const std::string& argument : options_.argv) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    std::fprintf(stderr, "error: %s: %s\n", argv[0], std::strerror(errno));
    _exit(2);
  }

  int call_child(int rank) {
    try {
      return options_.child();
    } catch (const Error& error) {
      log_error(error.what());
      return error.exit_code();
    } catch (const std::exception& error) {
      log_error(error.what());
      return 1;
    }
  }

  bool any_running() const {
    for (const Child& child : children_)
      if (child.running) return true;
    return false;
  }

  void wait_for_signal(const sigset_t& watched) {
    milliseconds span(1000);
    if (deadline_) span = std::clamp(std::chrono::duration_cast<milliseconds>(*deadline_ - Clock::now()), milliseconds(1), span);
    const timespec limit{span.count() / 1000, span.count() % 1000 * 1'000'000};
    const int signal = sigtimedwait(&watched, nullptr, &limit);
    if (signal != SIGINT && signal != SIGTERM) return;
    forwarded_ = signal;
    kill_all(signal);
    if (!deadline_) deadline_ = Clock::now() + options_.stop_grace;
  }

  void reap() {
    int worst = -1;
    for (int rank = 0; rank < int(children_.size()); ++rank) {
      Child& child = children_[rank];
      if (!child.running || waitpid(child.process, &child.status, WNOHANG) != child.process) continue;
      child.running = false;
      if (child.status != 0 && !ended_in_order(child) && (worst < 0 || weight(child) > weight(children_[worst]))) worst = rank;
    }
    if (worst < 0 || first_ >= 0) return;
    first_ = worst;
    if (forwarded_ == 0) announce();  // before those that follow say that they lost it
    deadline_ = Clock::now() + options_.grace;
    kill_all(SIGTERM);
  }

  // After the forwarded signal, with its exit code.
  bool ended_in_order(const Child& child) const {
    return forwarded_ != 0 && WIFEXITED(child.status) && WEXITSTATUS(child.status) == 128 + forwarded_;
  }

  // Of several that ended in one moment, the one that others followed is more likely the killed one, then the one with bad input.
  static int weight(const Child& child) { return WIFSIGNALED(child.status) ? 2 : WEXITSTATUS(child.status) == 2 ? 1 : 0; }

  void kill_all(int signal) {
    for (const Child& child : children_)
      if (child.running && child.process > 0) kill(child.process, signal);
  }

  int report() {
    // Once a signal was forwarded, ranks that fail because others died of it are no causes.
    for (const Child& child : children_)
      if (ended_in_order(child) || (forwarded_ != 0 && WIFSIGNALED(child.status) && WTERMSIG(child.status) == forwarded_))
        return 128 + forwarded_;
    if (first_ < 0) return 0;
    if (!announced_) announce();
    const int status = children_[first_].status;
    return WIFEXITED(status) && WEXITSTATUS(status) == 2 ? 2 : 1;
  }

  // What became of the rank that failed first.
  void announce() {
    announced_ = true;
    const Child& child = children_[first_];
    const std::string who = str("rank ", first_, " (process ", child.process, ")");
    if (WIFEXITED(child.status)) {
      log_error(who, " failed with exit code ", WEXITSTATUS(child.status), "; the other ranks are ended");
    } else {
      const int signal = WTERMSIG(child.status);
      log_error(who, " was killed by signal ", signal, " (", strsignal(signal), "); the other ranks are ended");
    }
  }

  const LaunchOptions& options_;
  std::vector<Child> children_;
  detail::ListeningSocket socket_{-1, 0};
  sigset_t old_signals_{};
  pid_t parent_ = 0;
  int first_ = -1;  // the rank that failed first
  bool announced_ = false;
  int forwarded_ = 0;  // signal
  std::optional<Clock::time_point> deadline_;
};

int num_threads() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) count += !entry.path().empty();
  return count;
}

}  // namespace

int launch_processes(const LaunchOptions& options) {
  if (options.num_ranks < 1) throw ConfigError(str("number of ranks: ", options.num_ranks, " (allowed: 1 or more)"));
  if (bool(options.child) == !options.argv.empty()) throw InternalError("launch_processes: give either argv or child");
  if (options.child && num_threads() > 1)
    throw InternalError(str("launch_processes: ", num_threads(), " threads run, a fork would lose them"));
  return Launch(options).run();
}

}  // namespace hyper_parallel
