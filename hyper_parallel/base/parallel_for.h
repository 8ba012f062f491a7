// SPDX-License-Identifier: Apache-2.0
// parallel_for splits a range over the calling rank's intra-op threads: the same OpenMP runtime and the same split as at::parallel_for,
// whose header runs serially in a source that isn't compiled with gcc's -fopenmp.
//   parallel_for(at::get_num_threads(), 0, rows, 64, [&](int64_t begin, int64_t end) { ... });
#pragma once
#include <cstdint>

namespace hyper_parallel {
namespace detail {
void run_parallel(int num_threads, int64_t begin, int64_t end, int64_t grain, const void* body,
                  void (*call)(const void* body, int64_t begin, int64_t end));
}  // namespace detail

// body(b, e) for consecutive pieces of [begin, end), as many as threads, fewer where that would be less than `grain` a piece. Runs in the
// caller's thread where the range is no larger than `grain`, where num_threads is 1, and inside another parallel region. `body` must not
// throw. num_threads: at::get_num_threads(), which also sets up OpenMP's runtime in a thread that calls it for the first time.
template <class Body>
void parallel_for(int num_threads, int64_t begin, int64_t end, int64_t grain, const Body& body) {
  detail::run_parallel(num_threads, begin, end, grain, &body,
                       [](const void* self, int64_t b, int64_t e) { (*static_cast<const Body*>(self))(b, e); });
}

}  // namespace hyper_parallel
