// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace hyper_parallel {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamsAndSeedsDiffer) {
  EXPECT_NE(Philox(1, "a").bits(0), Philox(1, "b").bits(0));
  EXPECT_NE(Philox(1, "a").bits(0), Philox(2, "a").bits(0));
  EXPECT_EQ(Philox(1, "a").bits(7), Philox(1, "a").bits(7));
}

TEST(Philox, NormalMoments) {
  const Philox stream(3, "moments");
  const int num_samples = 200000;
  double sum = 0, squares = 0;
  for (int i = 0; i < num_samples; ++i) {
    const double z = stream.normal(i);
    sum += z;
    squares += z * z;
  }
  EXPECT_NEAR(sum / num_samples, 0.0, 0.01);
  EXPECT_NEAR(squares / num_samples, 1.0, 0.02);
}

TEST(Philox, IntegersCoverTheRange) {
  const Philox stream(5, "dice");
  std::array<int, 6> seen{};
  for (int i = 0; i < 6000; ++i) ++seen.at(stream.integer(i, 6));
  for (const int count : seen) EXPECT_NEAR(count, 1000, 150);
}

// Ranges of all lengths and starts, against the values of single elements.
template <class T>
void expect_fill(const Distribution& distribution, double (*value)(const Philox&, uint64_t, const Distribution&), double tolerance) {
  const Philox stream(7, "w");
  for (const uint64_t begin : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 32) - 9})
    for (int count = 0; count < 40; ++count) {
      std::vector<T> filled(count + 1, T(-7));
      stream.fill(filled.data(), count, begin, distribution);
      for (int i = 0; i < count; ++i)
        ASSERT_NEAR(double(filled[i]), double(T(value(stream, begin + i, distribution))), tolerance) << begin << " + " << i;
      ASSERT_EQ(filled[count], T(-7));
    }
}

TEST(PhiloxFill, AgreesWithSingleElements) {
  using Kind = Distribution::Kind;
  const auto uniform = [](const Philox& stream, uint64_t index, const Distribution& d) {
    return d.a + (d.b - d.a) * stream.uniform(index);
  };
  const auto normal = [](const Philox& stream, uint64_t index, const Distribution& d) { return d.a + d.b * stream.normal(index); };
  const auto bernoulli = [](const Philox& stream, uint64_t index, const Distribution& d) { return stream.uniform(index) < d.a ? 1. : 0.; };
  const auto integer = [](const Philox& stream, uint64_t index, const Distribution& d) {
    return d.a + double(stream.integer(index, uint64_t(d.b - d.a)));
  };
  expect_fill<double>({Kind::kUniform, -1, 2}, uniform, 0);
  expect_fill<float>({Kind::kUniform, -1, 2}, uniform, 0);
  expect_fill<double>({Kind::kNormal, 0.5, 2}, normal, 2e-14);
  expect_fill<float>({Kind::kNormal, 0.5, 2}, normal, 1e-6);
  expect_fill<double>({Kind::kBernoulli, 0.3}, bernoulli, 0);
  expect_fill<float>({Kind::kBernoulli, 0.3}, bernoulli, 0);
  expect_fill<double>({Kind::kInteger, -3, 1e15}, integer, 0);
  expect_fill<float>({Kind::kInteger, -3, 9}, integer, 0);
}

TEST(PhiloxFill, NormalsAreTheSameBitsInEveryRange) {
  const Philox stream(7, "w");
  std::vector<double> whole(100), parts(100);
  stream.fill(whole.data(), 100, 3, {Distribution::Kind::kNormal, 0, 1});
  for (int begin = 0, count = 1; begin < 100; begin += count++)
    stream.fill(parts.data() + begin, std::min(count, 100 - begin), 3 + begin, {Distribution::Kind::kNormal, 0, 1});
  EXPECT_EQ(whole, parts);
}

TEST(PhiloxFill, MasksAreBernoulliValues) {
  const Philox stream(7, "w");
  bool mask[21];
  stream.fill_mask(mask, 21, 2, 0.6);
  for (int i = 0; i < 21; ++i) EXPECT_EQ(mask[i], stream.uniform(2 + i) < 0.6);
}

// 2^-24 below 1 lies nearer to 1 than to the largest float below it, so plain rounding would reach the end.
TEST(PhiloxFill, FloatsStayBelowTheUpperEnd) {
  const Philox stream(7, "w");
  std::vector<float> values(20000);
  stream.fill(values.data(), 20000, 0, {Distribution::Kind::kUniform, 1, 1 + 0x1p-22});
  bool low = false, high = false;
  for (const float value : values) {
    ASSERT_GE(value, 1);
    ASSERT_LT(value, 1 + 0x1p-22);
    low |= value == 1;
    high |= value == float(1 + 0x1p-23);
  }
  EXPECT_TRUE(low && high);
}

TEST(StableHash, ContinuesWithAnotherText) { EXPECT_EQ(stable_hash("dtensor.17"), stable_hash("17", stable_hash("dtensor."))); }

}  // namespace
}  // namespace hyper_parallel
