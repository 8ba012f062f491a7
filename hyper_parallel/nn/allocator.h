// SPDX-License-Identifier: Apache-2.0
// The process's allocator. glibc maps each large tensor afresh and unmaps it when freed, so every training step pays for its page faults
// again: half of a step's system time.
#pragma once

namespace hyper_parallel {

// Keeps freed memory in the process for the next step. Call once, early in main(); nothing happens where glibc is not the allocator or
// where MALLOC_MMAP_THRESHOLD_ or MALLOC_TRIM_THRESHOLD_ is set.
void keep_freed_memory();

}  // namespace hyper_parallel
