// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/generate/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

const std::vector<float> kLogits{0.f, 2.f, 1.f, -1.f, 2.f};

std::vector<double> frequencies(const SamplingOptions& options, int draws) {
  Sampler sampler(options);
  std::vector<double> share(kLogits.size());
  for (int i = 0; i < draws; ++i) share[static_cast<size_t>(sampler.pick(kLogits.data(), 5, 0, static_cast<uint64_t>(i)))] += 1;
  for (double& part : share) part /= draws;
  return share;
}

std::vector<double> softmax_over(const std::vector<size_t>& kept, double temperature) {
  std::vector<double> p(kLogits.size());
  double sum = 0;
  for (size_t i : kept) sum += p[i] = std::exp(kLogits[i] / temperature);
  for (double& x : p) x /= sum;
  return p;
}

void expect_shares(const SamplingOptions& options, const std::vector<double>& want) {
  constexpr int kDraws = 40000;
  const auto got = frequencies(options, kDraws);
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == 0) {
      EXPECT_EQ(got[i], 0) << "token " << i;
    }
    EXPECT_NEAR(got[i], want[i], 5 * std::sqrt(want[i] * (1 - want[i]) / kDraws) + 1e-12) << "token " << i;
  }
}

TEST(SamplerTest, GreedyTakesTheFirstLargest) { EXPECT_EQ(Sampler({}).pick(kLogits.data(), 5, 0, 0), 1); }

TEST(SamplerTest, SharesFollowTheSoftmax) {
  expect_shares({.temperature = 1, .seed = 3}, softmax_over({0, 1, 2, 3, 4}, 1));
  expect_shares({.temperature = 2.5, .seed = 4}, softmax_over({0, 1, 2, 3, 4}, 2.5));
}

TEST(SamplerTest, TopKAndTopPCutTheTail) {
  expect_shares({.temperature = 1, .top_k = 3, .seed = 5}, softmax_over({1, 2, 4}, 1));
  expect_shares({.temperature = 1, .top_k = 100, .seed = 5}, softmax_over({0, 1, 2, 3, 4}, 1));
  // Probabilities sorted: 0.39, 0.39, 0.14, 0.05, 0.02: two reach 0.7, three are needed for 0.8.
  expect_shares({.temperature = 1, .top_p = 0.7, .seed = 6}, softmax_over({1, 4}, 1));
  expect_shares({.temperature = 1, .top_p = 0.8, .seed = 6}, softmax_over({1, 2, 4}, 1));
  expect_shares({.temperature = 1, .top_p = 1e-9, .seed = 6}, softmax_over({1}, 1));
}

TEST(SamplerTest, DrawsAreAFunctionOfSeedRowAndStep) {
  Sampler a({.temperature = 1, .seed = 1}), b({.temperature = 1, .seed = 1}), other({.temperature = 1, .seed = 2});
  int same_seed = 0, same_row = 0;
  for (uint64_t step = 100; step-- > 0;) {
    const int64_t token = a.pick(kLogits.data(), 5, 7, step);
    EXPECT_EQ(token, b.pick(kLogits.data(), 5, 7, step));
    EXPECT_EQ(token, a.pick(kLogits.data(), 5, 7, step));
    same_seed += token == other.pick(kLogits.data(), 5, 7, step);
    same_row += token == a.pick(kLogits.data(), 5, 8, step);
  }
  EXPECT_LT(same_seed, 90);
  EXPECT_LT(same_row, 90);
}

TEST(SamplerTest, OptionsOutOfRangeAreNamed) {
  for (const auto& [options, name] : std::vector<std::pair<SamplingOptions, const char*>>{
           {{.temperature = -1}, "temperature"}, {{.top_k = -1}, "top_k"}, {{.top_p = 0}, "top_p"}, {{.top_p = 1.5}, "top_p"}}) {
    try {
      Sampler sampler(options);
      FAIL() << name;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(name));
    }
  }
}

}  // namespace
}  // namespace hyper_parallel
