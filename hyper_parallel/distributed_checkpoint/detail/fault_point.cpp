// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/detail/fault_point.h"

#include <signal.h>

#include <cstdlib>
#include <string>

namespace hyper_parallel::detail {

void fault_point(const char* name, int rank) {
  const char* const wanted = std::getenv("HYPER_PARALLEL_FAULT");
  if (wanted == nullptr) return;
  const std::string text = wanted;
  if (text == name || text == std::string(name) + "@" + std::to_string(rank)) raise(SIGKILL);
}

}  // namespace hyper_parallel::detail
