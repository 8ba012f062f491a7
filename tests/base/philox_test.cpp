// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/philox.h"

#include <gtest/gtest.h>

#include <cmath>

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

}  // namespace
}  // namespace hyper_parallel
