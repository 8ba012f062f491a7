// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/philox.h"

#include <cmath>
#include <numbers>

namespace hyper_parallel {
namespace {

constexpr uint32_t low(uint64_t word) { return static_cast<uint32_t>(word); }
constexpr uint32_t high(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

// 53 bits into [0, 1).
double to_unit(uint32_t a, uint32_t b) { return static_cast<double>(((uint64_t{a} << 32) | b) >> 11) * 0x1p-53; }

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0], product1 = kMultiplier1 * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1), high(product0) ^ counter[3] ^ key[1], low(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

uint64_t stable_hash(std::string_view text, uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

Philox::Philox(uint64_t seed, uint64_t stream_hash) : key_{low(seed), high(seed)}, stream_{low(stream_hash), high(stream_hash)} {}

std::array<uint32_t, 4> Philox::bits(uint64_t index) const { return philox4x32({low(index), high(index), stream_[0], stream_[1]}, key_); }

double Philox::uniform(uint64_t index) const {
  const auto words = bits(index);
  return to_unit(words[0], words[1]);
}

double Philox::normal(uint64_t index) const {
  const auto words = bits(index);
  const double radius = std::sqrt(-2.0 * std::log(1.0 - to_unit(words[0], words[1])));
  return radius * std::cos(2.0 * std::numbers::pi * to_unit(words[2], words[3]));
}

uint64_t Philox::integer(uint64_t index, uint64_t bound) const {
  const auto words = bits(index);
  const uint64_t word = (uint64_t{words[0]} << 32) | words[1];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(word) * bound) >> 64);
}

}  // namespace hyper_parallel
