// SPDX-License-Identifier: Apache-2.0
// parallel_for splits a range over the calling rank's intra-op threads, those of at::set_num_threads: the same OpenMP runtime and the same
// split as at::parallel_for, whose header runs serially in a source that isn't compiled with gcc's -fopenmp.
//   parallel_for(0, rows, 64, [&](int64_t begin, int64_t end) { ... });
#pragma once
#include <cstdint>

namespace hyper_parallel {
namespace detail {
void run_parallel(int64_t begin, int64_t end, int64_t grain, const void* body, void (*call)(const void* body, int64_t begin, int64_t end));
}  // namespace detail

// The threads that a parallel_for of this rank may use.
int num_intra_op_threads();

// body(b, e) for consecutive pieces of [begin, end), none smaller than `grain` but the last. Runs in the caller's thread where the range is
// no larger than `grain`, where one thread is set, and inside another parallel region. `body` must not throw.
template <class Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  detail::run_parallel(begin, end, grain, &body, [](const void* self, int64_t b, int64_t e) { (*static_cast<const Body*>(self))(b, e); });
}

}  // namespace hyper_parallel
