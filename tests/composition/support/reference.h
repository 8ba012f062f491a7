// SPDX-License-Identifier: Apache-2.0
// The run that every row must equal: one rank, plain autograd over the whole batch at once, AdamW and clipping written out in ATen ops.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "tests/composition/support/rows.h"

namespace hyper_parallel::composition {

inline constexpr uint64_t kSeed = 7;
inline constexpr int64_t kNumSequences = 24, kSequenceLength = 6;
// The large epsilon keeps AdamW well-conditioned: with a tiny one an element whose gradient is rounding noise moves by the learning rate.
inline constexpr double kLearningRate = 1e-2, kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-3, kWeightDecay = 0.1, kMaxNorm = 0.1;

struct Batch {
  at::Tensor input_ids, labels;  // int64 [kNumSequences, kSequenceLength]
};
// The global batch of a step. Which labels are valid depends on the row's number of ranks and accumulation.
Batch make_batch(const Row& row, int64_t step);

struct ReferenceStep {
  double loss = 0, norm = 0;
  std::map<std::string, at::Tensor> gradients, weights;  // by full name; weights after the step
};
std::vector<ReferenceStep> run_reference(const Row& row);

at::ScalarType dtype_of(const Row& row);

}  // namespace hyper_parallel::composition
