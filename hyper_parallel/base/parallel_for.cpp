// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/parallel_for.h"

#include <algorithm>

// The runtime that libtorch uses, by its binary interface: #pragma omp would bring in that of the compiler, a second pool of threads.
extern "C" {
void GOMP_parallel(void (*function)(void*), void* data, unsigned num_threads, unsigned flags);
int omp_get_num_threads();
int omp_get_thread_num();
int omp_in_parallel();
}

namespace hyper_parallel::detail {
namespace {

struct Region {
  int64_t begin, end, grain;
  const void* body;
  void (*call)(const void*, int64_t, int64_t);
};

void run_piece(void* data) {
  const Region& region = *static_cast<const Region*>(data);
  const int64_t size = region.end - region.begin, most = (size + region.grain - 1) / region.grain;
  const int64_t pieces = std::min<int64_t>(omp_get_num_threads(), most), piece = (size + pieces - 1) / pieces;
  const int64_t begin = region.begin + omp_get_thread_num() * piece;
  if (begin < region.end) region.call(region.body, begin, std::min(region.end, begin + piece));
}

}  // namespace

void run_parallel(int num_threads, int64_t begin, int64_t end, int64_t grain, const void* body,
                  void (*call)(const void*, int64_t, int64_t)) {
  if (begin >= end) return;
  grain = std::max<int64_t>(grain, 1);
  if (end - begin <= grain || num_threads == 1 || omp_in_parallel()) return call(body, begin, end);
  Region region{begin, end, grain, body, call};
  GOMP_parallel(&run_piece, &region, 0, 0);
}

}  // namespace hyper_parallel::detail
