// SPDX-License-Identifier: Apache-2.0
// What a run tells the world: metrics.jsonl (one object a step), TensorBoard scalars, and a progress bar or plain lines. Rank 0 only.
//
//   MetricsLog log(output_dir, {.num_steps = 100, .logging_steps = 10, .resume_step = 0});
//   log.step({.step = 1, .loss = 5.4, ...});
#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

namespace hyper_parallel {

class EventFileWriter;  // base/event_file.h

struct StepMetrics {
  int64_t step = 0;      // 1 is the first
  double loss = 0;       // mean over the valid tokens of the global batch
  double grad_norm = 0;  // before clipping
  double lr = 0;
  int64_t tokens = 0;  // valid tokens of this step, all ranks
  double step_seconds = 0;
  std::optional<double> val_loss;
};

struct MetricsOptions {
  int64_t num_steps = 0;      // the last one that this run does, for the progress bar
  int64_t logging_steps = 1;  // plain lines, where standard error is no terminal
  int64_t resume_step = 0;    // lines of later steps, of a run that this one repeats, are dropped
};

class MetricsLog {
 public:
  // Creates the folder. RuntimeError names a path that can't be written.
  MetricsLog(const std::filesystem::path& output_dir, const MetricsOptions& options);
  ~MetricsLog();
  void step(const StepMetrics& metrics);
  void finish();  // ends the progress bar's line

 private:
  void show(const StepMetrics& metrics);
  MetricsOptions options_;
  std::filesystem::path path_;
  std::ofstream file_;
  std::unique_ptr<EventFileWriter> events_;
  bool terminal_;
  bool bar_shown_ = false;
  double seconds_shown_ = 0;
};

// Peak resident memory of this process in bytes.
int64_t max_rss_bytes();

}  // namespace hyper_parallel
