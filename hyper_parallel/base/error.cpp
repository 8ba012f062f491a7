// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/error.h"

namespace hyper_parallel {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  const std::string detail = message.empty() ? "" : str(": ", message);
  throw InternalError(str(file, ":", line, ": internal check failed: ", condition, detail));
}

}  // namespace hyper_parallel
