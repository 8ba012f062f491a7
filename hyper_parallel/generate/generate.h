// SPDX-License-Identifier: Apache-2.0
// Batched decoding with a KV cache.
//
//   auto results = generate(*model, {{1, 2, 3}, {7}}, {.max_new_tokens = 64, .stop_tokens = {0}, .sampling = {.temperature = 0.7}});
//   results[0].tokens;   // new tokens only, the stop token included
//
// Prompts may differ in length. A row's greedy output does not depend on its neighbours, up to rounding of the matrix products.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "hyper_parallel/generate/sampler.h"
#include "hyper_parallel/models/causal_lm.h"

namespace hyper_parallel {

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  int64_t num_tokens = 0;            // only ids below this are generated; 0: the model's vocabulary
  std::vector<int64_t> stop_tokens;  // a row ends after any of these
  SamplingOptions sampling;
  // Called for every new token in order of steps, then rows; false ends the row.
  std::function<bool(size_t row, int64_t token)> on_token;
};

struct Generated {
  enum class Reason { kLength, kStopToken, kCallback };
  std::vector<int64_t> tokens;
  Reason reason = Reason::kLength;
};

// ConfigError for options out of range or when the longest prompt and max_new_tokens exceed the model's positions; DataError for no prompt,
// an empty one, or a token outside the vocabulary.
std::vector<Generated> generate(CausalLm& model, const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options);

}  // namespace hyper_parallel
