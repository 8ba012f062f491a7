// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/data/permutation.h"

#include <algorithm>
#include <bit>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/philox.h"

namespace hyper_parallel {

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t round) : size_(size), seed_(seed), round_(round) {
  HYPER_PARALLEL_CHECK(size > 0, "a permutation of nothing");
  // An even number of bits that holds size - 1: at most 4 times too large, so a walk takes less than 4 steps on average.
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
}

uint64_t Permutation::operator()(uint64_t index) const {
  HYPER_PARALLEL_CHECK(index < size_, index, " of ", size_);
  do index = encrypt(index);
  while (index >= size_);
  return index;
}

uint64_t Permutation::encrypt(uint64_t value) const {
  constexpr uint32_t kNumRounds = 8;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint32_t step = 0; step < kNumRounds; ++step) {
    const auto words = philox4x32({static_cast<uint32_t>(right), step, static_cast<uint32_t>(round_), static_cast<uint32_t>(round_ >> 32)},
                                  {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    const uint64_t next = left ^ (words[0] & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

}  // namespace hyper_parallel
