// SPDX-License-Identifier: Apache-2.0
// The binary under test, and a folder with everything for a run of a few tenths of a second: text, run.yaml, and what the run leaves.
//
//   TrainFolder run;
//   Outcome outcome = run.train({"--launcher.ranks=2"});
//   EXPECT_EQ(run.metric("loss").size(), 6u);
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "tests/support/program.h"
#include "tests/support/temporary_folder.h"

namespace hyper_parallel::test {

using Strings = std::vector<std::string>;
using testing_support::read_text;
using testing_support::TemporaryFolder;
using testing_support::write_text;
namespace fs = std::filesystem;

fs::path binary();  // HYPER_PARALLEL_BINARY

// Variables for every run: one compute thread a rank, no launcher, no fault. A later item wins.
Strings environment(const Strings& more = {});

// `hyper-parallel ARGUMENTS...`, ended after a minute.
Outcome hyper_parallel(const Strings& arguments, const Strings& more_environment = {});

// The same for several command lines, two at a time.
std::vector<Outcome> hyper_parallel_each(const std::vector<Strings>& commands);

// A run's folder: output_dir of run.yaml. Values of metrics.jsonl are kept as text, so that equal means equal in every bit.
struct RunOutput {
  fs::path folder;
  Strings metric(const std::string& key) const;  // one value a line
  std::vector<double> numbers(const std::string& key) const;
  fs::path checkpoint(int step) const;
  std::string latest() const;  // "step-000006", "" if there is none
  // Names and bytes of the files of a checkpoint that hold tensors.
  std::string tensor_bytes(int step) const;
};

class TrainFolder {
 public:
  // A config of 6 steps, 24 sequences of 32 tokens each, in microbatches of 2, on two ranks (threads), saved at the end.
  TrainFolder();
  const fs::path& path() const { return folder_.path(); }
  fs::path config() const { return folder_ / "run.yaml"; }
  fs::path text() const { return folder_ / "text.txt"; }
  // Arguments of `hyper-parallel` that train into `output`, a folder in this one.
  Strings arguments(const std::string& output, const Strings& overrides = {}) const;
  // Trains; expects exit code 0.
  RunOutput run(const std::string& output, const Strings& overrides = {}, const Strings& more_environment = {}) const;
  // The same for several {output, overrides}, two at a time: most of a short run is the start of the program, on one core.
  std::vector<RunOutput> run_each(const std::vector<std::pair<std::string, Strings>>& runs) const;
  Outcome train(const std::string& output, const Strings& overrides = {}, const Strings& more_environment = {}) const;
  RunOutput output(const std::string& name) const { return {folder_ / name}; }

 private:
  TemporaryFolder folder_;
};

// Child processes of `process`, in the order of their start.
std::vector<pid_t> children_of(pid_t process);

}  // namespace hyper_parallel::test
