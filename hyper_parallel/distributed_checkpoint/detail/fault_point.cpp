// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/detail/fault_point.h"

#include <signal.h>

#include <cstdlib>
#include <sstream>
#include <string>

namespace hyper_parallel::detail {

bool fault_wanted(const char* name, int rank) {
  const char* const wanted = std::getenv("HYPER_PARALLEL_FAULT");
  if (wanted == nullptr) return false;
  std::istringstream faults(wanted);
  for (std::string fault; std::getline(faults, fault, ',');) {
    if (fault == name || fault == std::string(name) + "@" + std::to_string(rank)) return true;
  }
  return false;
}

void fault_point(const char* name, int rank) {
  if (fault_wanted(name, rank)) raise(SIGKILL);
}

}  // namespace hyper_parallel::detail
