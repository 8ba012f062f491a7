// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

thread_local int log_rank = -1;

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

LogLevel level_from_environment() {
  const char* text = std::getenv("HYPER_PARALLEL_LOG");
  const std::string name = text ? text : "info";
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  throw ConfigError(str("HYPER_PARALLEL_LOG: unknown level \"", name, "\" (allowed: debug, info, warning, error)"));
}

LogLevel least_level() {
  static const LogLevel level = level_from_environment();
  return level;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = spdlog::stderr_color_mt("hyper_parallel");
    made->set_pattern(str(line_start(), "%^%l%$: %v"));
    made->set_level(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

}  // namespace

const char* line_start() {
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  return terminal ? "\r\033[K" : "";
}

void set_log_rank(int rank) { log_rank = rank; }

bool log_enabled(LogLevel level) {
  if (level < least_level()) return false;
  return level >= LogLevel::kWarning || log_rank <= 0;
}

void log_line(LogLevel level, const std::string& text) {
  if (!log_enabled(level)) return;
  const bool named = log_rank >= 0 && level != LogLevel::kInfo;
  logger().log(spdlog_level(level), "{}", named ? str("rank ", log_rank, ": ", text) : text);
}

}  // namespace hyper_parallel
