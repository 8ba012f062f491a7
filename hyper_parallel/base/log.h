// SPDX-License-Identifier: Apache-2.0
// Log lines on standard error: log_info(...), log_warning(...), log_error(...) take anything that str() takes. A rank sets its prefix
// once; info lines are printed by rank 0 only, warnings and errors by every rank. Not for hot paths.
#pragma once
#include <string>

#include "hyper_parallel/base/string.h"

namespace hyper_parallel {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Level from HYPER_PARALLEL_LOG (debug, info, warning, error; default info).
void log_line(LogLevel level, const std::string& text);
// Of the calling thread: -1 (the start) prints everything without a prefix.
void set_log_rank(int rank);
bool log_enabled(LogLevel level);
// What each line on standard error begins with: on a terminal it clears a progress bar, perhaps another process's, elsewhere it is empty.
const char* line_start();

template <class... Parts>
void log_debug(const Parts&... parts) {
  if (log_enabled(LogLevel::kDebug)) log_line(LogLevel::kDebug, str(parts...));
}
template <class... Parts>
void log_info(const Parts&... parts) {
  if (log_enabled(LogLevel::kInfo)) log_line(LogLevel::kInfo, str(parts...));
}
template <class... Parts>
void log_warning(const Parts&... parts) {
  log_line(LogLevel::kWarning, str(parts...));
}
template <class... Parts>
void log_error(const Parts&... parts) {
  log_line(LogLevel::kError, str(parts...));
}

}  // namespace hyper_parallel
