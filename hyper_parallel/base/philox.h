// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 counter generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). A value is a pure function of
// (seed, stream name, element index), so whoever holds element i of a tensor computes the same value, whatever the sharding.
//
//   Philox stream(seed, "layers.0.mlp.up.weight");
//   double u = stream.uniform(i);    // [0, 1), 53 bits
//   double z = stream.normal(i);     // Box-Muller on the uniforms of element i alone
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace hyper_parallel {

// Ten rounds; `counter` and `key` as in the paper. Known answers: tests/base/philox_test.cpp.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// FNV-1a, 64 bits: stable over versions and machines, for stream names and checkpoint keys.
uint64_t stable_hash(std::string_view text);

class Philox {
 public:
  Philox(uint64_t seed, std::string_view stream);
  // The raw 128 bits of element `index`.
  std::array<uint32_t, 4> bits(uint64_t index) const;
  double uniform(uint64_t index) const;
  double normal(uint64_t index) const;
  // Uniform over [0, bound), without modulo bias beyond 2^-64. bound > 0.
  uint64_t integer(uint64_t index, uint64_t bound) const;

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 2> stream_;
};

}  // namespace hyper_parallel
