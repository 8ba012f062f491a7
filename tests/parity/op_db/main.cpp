// SPDX-License-Identifier: Apache-2.0
// op_db_replay FOLDER RESULTS [--mesh 2]... [--once] [--limit N] [--ops REGEX] [--on-missing-rule replicate]: replays the calls that
// record.py wrote to FOLDER on ranks as threads, and writes a JSON line for each call, mesh and layout to RESULTS:
//   {"call": 12, "op": "aten::mm", "mesh": [2], "layout": "[S(0)], [R]", "verdict": "passed", "message": ""}
// --once: only the first recorded call of each op. The replay runs in a child process: if it crashes or hangs, the layout at fault counts
// as wrong and a new child goes on after it.
#include <ATen/core/grad_mode.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/shard/policy.h"
#include "tests/parity/op_db/replay.h"

namespace hyper_parallel::op_db {
namespace {

using Json = nlohmann::json;

struct Options {
  std::string folder, results, ops;
  std::vector<std::string> meshes{"2"};
  std::string on_missing_rule = "error";
  bool once = false;
  size_t limit = 24;
};

// How far the child is; shared with its parent. A "job" is a call on a mesh.
struct Progress {
  std::atomic<size_t> job{0}, layout{0};
  std::atomic<int64_t> steps{0};
};

struct Job {
  const RecordedCall* call;
  std::vector<int64_t> mesh;
};

class Replayer {
 public:
  Replayer(const Options& options, const Recording& recording) : options_(options) {
    for (const std::string& text : options.meshes) {
      std::vector<int64_t> mesh;
      std::stringstream stream(text);
      for (std::string part; std::getline(stream, part, 'x');) mesh.push_back(std::stoll(part));
      std::set<std::string> seen;
      for (const RecordedCall& call : recording.calls)
        if (wanted(call) && (!options.once || seen.insert(call.name).second)) jobs_.push_back({&call, mesh});
    }
    void* shared = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    progress_ = new (shared) Progress;
    std::ofstream(options.results, std::ios::trunc).close();
    results_.open(options.results, std::ios::app);
    if (!results_) throw DataError(options.results + ": can't be written");
  }

  void run() {
    while (progress_->job < jobs_.size()) {
      const pid_t child = fork();
      HYPER_PARALLEL_CHECK(child >= 0, "fork");
      if (child == 0) {
        run_child();
        std::fflush(nullptr);
        _exit(0);
      }
      if (const std::string end = watch(child); !end.empty()) {
        std::fprintf(stderr, "%s under layout %zu: %s\n", jobs_[progress_->job].call->name.c_str(), progress_->layout.load(), end.c_str());
        write_line(jobs_[progress_->job], assignments(jobs_[progress_->job]), progress_->layout, {Verdict::kWrong, end});
        step_over();
      }
    }
  }

 private:
  static constexpr int kPatienceSeconds = 60, kJobsAChild = 2000;

  bool wanted(const RecordedCall& call) const {
    return !tensors_of(call.arguments).empty() && (options_.ops.empty() || std::regex_search(call.name, std::regex(options_.ops)));
  }

  std::vector<Assignment> assignments(const Job& job) const {
    return assignments_of(tensors_of(job.call->arguments), int(job.mesh.size()), options_.limit);
  }

  // Why the child ended, if not well.
  std::string watch(pid_t child) {
    int64_t last = -1;
    for (int idle = 0, status = 0;; ++idle) {
      for (int tick = 0; tick < 100; ++tick) {
        if (waitpid(child, &status, WNOHANG) == child)
          return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : str("the process ends with status ", status);
        usleep(10'000);
      }
      if (progress_->steps != last) idle = 0;
      last = progress_->steps;
      if (idle < kPatienceSeconds) continue;
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return "hangs";
    }
  }

  void step_over() {
    if (++progress_->layout >= assignments(jobs_[progress_->job]).size()) {
      progress_->layout = 0;
      ++progress_->job;
    }
  }

  void run_child() {
    const size_t end = std::min(jobs_.size(), progress_->job + kJobsAChild);
    while (progress_->job < end) run_world(end);
  }

  // All jobs in turn with the same mesh, until one can't go on.
  void run_world(size_t end) {
    const std::vector<int64_t> shape = jobs_[progress_->job].mesh;
    int ranks = 1;
    for (int64_t size : shape) ranks *= int(size);
    Agreement agreement(ranks);
    try {
      run_threads(ranks, [&](World& world) { run_rank(world, shape, end, agreement); }, {.timeout = std::chrono::seconds(30)});
    } catch (const std::exception& error) {
      Outcome outcome = agreement.of_abandoned();
      if (outcome.verdict == Verdict::kPassed) outcome = {Verdict::kWrong, error.what()};
      write_line(jobs_[progress_->job], assignments(jobs_[progress_->job]), progress_->layout, outcome);
      step_over();
    }
  }

  void run_rank(World& world, const std::vector<int64_t>& shape, size_t end, Agreement& agreement) {
    const at::NoGradGuard no_grad;
    const ShardPolicyGuard policy({.on_missing_rule = parse_missing_rule(options_.on_missing_rule)});
    const DeviceMesh mesh(world.group(), shape, shape.size() == 1 ? std::vector<std::string>{"a"} : std::vector<std::string>{"a", "b"});
    size_t layout = progress_->layout;
    for (size_t job = progress_->job; job < end && jobs_[job].mesh == shape; ++job, layout = 0) {
      const auto tensors = tensors_of(jobs_[job].call->arguments);
      const auto list = assignments_of(tensors, int(shape.size()), options_.limit);
      for (; layout < list.size(); ++layout) {
        const Outcome outcome = replay(*jobs_[job].call, tensors, list[layout], mesh, world.rank(), agreement);
        if (world.rank() == 0) write_line(jobs_[job], list, layout, outcome);
        if (world.rank() == 0) step_to(layout + 1 < list.size() ? job : job + 1, layout + 1 < list.size() ? layout + 1 : 0);
        agreement.meet(world.rank(), {});
      }
    }
  }

  void step_to(size_t job, size_t layout) {
    progress_->job = job;
    progress_->layout = layout;
    ++progress_->steps;
  }

  void write_line(const Job& job, const std::vector<Assignment>& list, size_t layout, const Outcome& outcome) {
    const Json line{{"call", job.call->index},
                    {"op", job.call->name},
                    {"mesh", job.mesh},
                    {"layout", list[layout].text()},
                    {"verdict", name_of(outcome.verdict)},
                    {"message", outcome.message.substr(0, 400)}};
    results_ << line.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }

  const Options& options_;
  std::vector<Job> jobs_;
  Progress* progress_;
  std::ofstream results_;  // of parent and child; each line is flushed
};

}  // namespace
}  // namespace hyper_parallel::op_db

int main(int argc, char** argv) {
  setenv("OMP_NUM_THREADS", "1", 0);
  hyper_parallel::op_db::Options options;
  CLI::App app("Replays recorded aten calls on sharded tensors.");
  app.add_option("folder", options.folder, "what record.py wrote")->required();
  app.add_option("results", options.results, "file to write")->required();
  app.add_option("--mesh", options.meshes, "mesh shapes, such as 3 or 2x2");
  app.add_option("--ops", options.ops, "only ops whose name matches");
  app.add_option("--limit", options.limit, "layouts a call");
  app.add_option("--on-missing-rule", options.on_missing_rule, "error or replicate");
  app.add_flag("--once", options.once, "only the first recorded call of each op");
  CLI11_PARSE(app, argc, argv);
  try {
    const hyper_parallel::op_db::Recording recording(options.folder);
    hyper_parallel::op_db::Replayer(options, recording).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "op_db_replay: %s\n", error.what());
    return 1;
  }
  return 0;
}
