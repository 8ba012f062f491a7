// SPDX-License-Identifier: Apache-2.0
// Random values of sharded tensors. Element i of a tensor is a function of (seed, stream name, i) alone (base/philox.h), so every mesh and
// every layout holds bit-identical values, computed in f64 and rounded once, without communication.
//
//   manual_seed(1);                                     // of this rank's thread; every rank sets the same
//   DTensor x = randn({8, 4}, layout);                  // the thread's next stream
//   DTensor w = randn({8, 4}, layout, {.stream = Philox(1, "layers.0.weight")});
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hyper_parallel/base/philox.h"
#include "hyper_parallel/dtensor/spec.h"

namespace hyper_parallel {

// Streams that ops without a name draw from: "dtensor.0", "dtensor.1", ... of the seed. Ranks that run the same ops stay in step.
void manual_seed(uint64_t seed);
Philox next_random_stream();
struct RandomState {
  uint64_t seed = 0, counter = 0;
};
RandomState random_state();
void set_random_state(RandomState state);

// This rank's shard (Spec without Partial axes): contiguous, of the Spec's dtype.
at::Tensor random_local(const Spec* spec, const Philox& stream, const Distribution& distribution);
// The same into `local`, of the Spec's local shape; written directly if it is contiguous f32, f64 or a mask.
void fill_random(const at::Tensor& local, const Spec* spec, const Philox& stream, const Distribution& distribution);

}  // namespace hyper_parallel
