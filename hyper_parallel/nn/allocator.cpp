// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/nn/allocator.h"

#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>

#include <climits>
#endif

namespace hyper_parallel {

void keep_freed_memory() {
#if defined(__GLIBC__)
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr || std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr) return;
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_ARENA_MAX, 1);  // arenas of other threads hold at most 64 MiB a heap and map the rest afresh after all
#endif
}

}  // namespace hyper_parallel
