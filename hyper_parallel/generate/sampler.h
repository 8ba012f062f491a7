// SPDX-License-Identifier: Apache-2.0
// Picks the next token from logits. Randomness is a counter: a draw is a function of (seed, row, step) alone, so output repeats exactly and
// a row's draws do not depend on the other rows.
//
//   Sampler sampler({.temperature = 0.8, .top_k = 50, .top_p = 0.95, .seed = 1});
//   int64_t token = sampler.pick(logits_of_row, vocab, /*row=*/0, /*step=*/3);
#pragma once
#include <cstdint>
#include <vector>

namespace hyper_parallel {

struct SamplingOptions {
  double temperature = 0;  // 0: greedy, the first token of the largest logit
  int64_t top_k = 0;       // keep the k most likely tokens; 0: all
  double top_p = 1;        // then the smallest set of most likely tokens whose probability reaches top_p
  uint64_t seed = 0;
};

class Sampler {
 public:
  // ConfigError names an option out of its range.
  explicit Sampler(const SamplingOptions& options);
  // RuntimeError for a NaN among the logits.
  int64_t pick(const float* logits, int64_t vocab, uint64_t row, uint64_t step);

 private:
  int64_t draw(const float* logits, int64_t vocab, double uniform);
  const SamplingOptions options_;
  struct Candidate {
    double weight;  // the logit, then exp of it
    int64_t token;
  };
  std::vector<Candidate> candidates_;
};

}  // namespace hyper_parallel
