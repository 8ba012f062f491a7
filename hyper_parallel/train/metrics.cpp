// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/train/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/event_file.h"

namespace hyper_parallel {
namespace {

// Keeps the complete lines up to `last_step` and returns the text to go on from.
std::string kept_lines(const std::filesystem::path& path, int64_t last_step) {
  std::ifstream file(path);
  std::string kept;
  for (std::string line; std::getline(file, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (entry.is_discarded() || entry.value("step", INT64_MAX) > last_step) continue;
    kept += line + "\n";
  }
  return kept;
}

std::string duration_text(double seconds) {
  char text[32];
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  if (whole >= 3600)
    std::snprintf(text, sizeof(text), "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  else
    std::snprintf(text, sizeof(text), "%ld:%02ld", whole / 60, whole % 60);
  return text;
}

std::string bar(double done) {
  constexpr int kWidth = 24;
  const int filled = static_cast<int>(done * kWidth);
  return std::string(filled, '#') + std::string(kWidth - filled, '-');
}

}  // namespace

int64_t max_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

MetricsLog::MetricsLog(const std::filesystem::path& output_dir, const MetricsOptions& options)
    : options_(options), path_(output_dir / "metrics.jsonl"), terminal_(isatty(STDERR_FILENO) != 0) {
  std::error_code failed;
  std::filesystem::create_directories(output_dir, failed);
  const std::string kept = kept_lines(path_, options.resume_step);
  file_.open(path_, std::ios::trunc);
  file_ << kept << std::flush;
  if (failed || !file_) throw RuntimeError(str("cannot write ", path_.string(), failed ? ": " + failed.message() : ""));
  events_ = std::make_unique<EventFileWriter>(output_dir);
}

MetricsLog::~MetricsLog() { finish(); }

void MetricsLog::step(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step},
                                 {"loss", metrics.loss},
                                 {"grad_norm", metrics.grad_norm},
                                 {"lr", metrics.lr},
                                 {"tokens", metrics.tokens},
                                 {"tokens_per_second", metrics.tokens / metrics.step_seconds},
                                 {"step_seconds", metrics.step_seconds},
                                 {"max_rss_bytes", max_rss_bytes()}};
  if (metrics.val_loss) line["val_loss"] = *metrics.val_loss;
  file_ << line.dump() << "\n" << std::flush;
  if (!file_) throw RuntimeError(str("cannot write ", path_.string(), " (disk full?)"));
  for (const auto& [name, value] : line.items())
    if (name != "step") events_->scalar("train/" + name, metrics.step, value.get<double>());
  events_->flush();
  show(metrics);
}

void MetricsLog::show(const StepMetrics& metrics) {
  seconds_shown_ += metrics.step_seconds;
  const bool last = metrics.step == options_.num_steps;
  if (!terminal_ && !last && metrics.step % options_.logging_steps != 0) return;
  const double mean = seconds_shown_ / static_cast<double>(metrics.step - options_.resume_step);
  const std::string left = duration_text(mean * static_cast<double>(options_.num_steps - metrics.step));
  char numbers[160];
  std::snprintf(numbers, sizeof(numbers), "loss %.4f  norm %.3f  lr %.2e  %.0f tokens/s  left %s", metrics.loss, metrics.grad_norm,
                metrics.lr, metrics.tokens / metrics.step_seconds, left.c_str());
  char validation[40] = "";
  if (metrics.val_loss) std::snprintf(validation, sizeof(validation), "  val_loss %.4f", *metrics.val_loss);
  if (!terminal_) {
    std::fprintf(stderr, "step %ld/%ld  %s%s\n", metrics.step, options_.num_steps, numbers, validation);
    return;
  }
  std::fprintf(stderr, "\r[%s] %ld/%ld  %s%s\033[K", bar(static_cast<double>(metrics.step) / options_.num_steps).c_str(), metrics.step,
               options_.num_steps, numbers, validation);
  std::fflush(stderr);
  bar_shown_ = true;
}

void MetricsLog::finish() {
  if (std::exchange(bar_shown_, false)) std::fputc('\n', stderr);
}

}  // namespace hyper_parallel
