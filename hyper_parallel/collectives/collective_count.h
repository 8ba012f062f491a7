// SPDX-License-Identifier: Apache-2.0
// Counts what a thread begins to communicate, for tests of how many collectives something takes.
#pragma once
#include <cstdint>

namespace hyper_parallel {

// Collectives, sends and receives that the calling thread began since it started.
uint64_t num_collectives_begun();

}  // namespace hyper_parallel
