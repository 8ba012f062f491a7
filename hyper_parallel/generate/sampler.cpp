// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/generate/sampler.h"

#include <algorithm>
#include <cmath>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/philox.h"

namespace hyper_parallel {

Sampler::Sampler(const SamplingOptions& options) : options_(options) {
  if (!(options_.temperature >= 0)) throw ConfigError(str("temperature: ", options_.temperature, " (allowed: 0 for greedy, or above)"));
  if (options_.top_k < 0) throw ConfigError(str("top_k: ", options_.top_k, " (allowed: 0 for all, or above)"));
  if (!(options_.top_p > 0 && options_.top_p <= 1)) throw ConfigError(str("top_p: ", options_.top_p, " (allowed: above 0, up to 1)"));
}

int64_t Sampler::pick(const float* logits, int64_t vocab, uint64_t row, uint64_t step) {
  for (int64_t i = 0; i < vocab; ++i)
    if (std::isnan(logits[i])) throw RuntimeError(str("row ", row, ", new token ", step, ": the logit of token ", i, " is NaN"));
  if (options_.temperature == 0) return std::max_element(logits, logits + vocab) - logits;
  // Rows take interleaved counters: 2^32 steps each before one meets the next.
  return draw(logits, vocab, Philox(options_.seed, "generate").uniform((row << 32) | step));
}

int64_t Sampler::draw(const float* logits, int64_t vocab, double uniform) {
  candidates_.resize(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < vocab; ++i) candidates_[static_cast<size_t>(i)] = {logits[i] / options_.temperature, i};
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
  };
  if (options_.top_k != 0 && options_.top_k < vocab) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(), likelier);
    candidates_.resize(static_cast<size_t>(options_.top_k));
  }
  // Only the nucleus needs an order; sorting a whole vocabulary costs more than the rest.
  if (options_.top_p < 1 || options_.top_k != 0) std::sort(candidates_.begin(), candidates_.end(), likelier);
  const double top = std::min_element(candidates_.begin(), candidates_.end(), likelier)->weight;
  double total = 0;
  for (Candidate& candidate : candidates_) total += candidate.weight = std::exp(candidate.weight - top);
  size_t nucleus = 0;
  double mass = 0;
  while (nucleus < candidates_.size() && (nucleus == 0 || mass < options_.top_p * total)) mass += candidates_[nucleus++].weight;
  double left = uniform * mass;
  for (size_t i = 0; i + 1 < nucleus; ++i) {
    left -= candidates_[i].weight;
    if (left < 0) return candidates_[i].token;
  }
  return candidates_[nucleus - 1].token;
}

}  // namespace hyper_parallel
