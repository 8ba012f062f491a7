// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 counter generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). A value is a pure function of
// (seed, stream name, element index), so whoever holds element i of a tensor computes the same value, whatever the sharding.
//
//   Philox stream(seed, "layers.0.mlp.up.weight");
//   double u = stream.uniform(i);    // [0, 1), 53 bits
//   double z = stream.normal(i);     // Box-Muller on the uniforms of element i alone
//   stream.fill(data, count, i, {Distribution::Kind::kNormal, 0, 0.02});    // elements i, i + 1, ...: eight at a time
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace hyper_parallel {

// Ten rounds; `counter` and `key` as in the paper. Known answers: tests/base/philox_test.cpp.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// FNV-1a, 64 bits: stable over versions and machines, for stream names and checkpoint keys. `hash` of a text continues with another:
// stable_hash("ab") == stable_hash("b", stable_hash("a")).
uint64_t stable_hash(std::string_view text, uint64_t hash = 0xcbf29ce484222325);

struct Distribution {
  enum class Kind : uint8_t { kUniform, kNormal, kBernoulli, kInteger };
  Kind kind = Kind::kUniform;
  double a = 0;  // uniform: low; normal: mean; bernoulli: probability of 1; integer: low
  double b = 1;  // uniform: high (exclusive); normal: standard deviation; integer: high (exclusive)
};

class Philox {
 public:
  Philox(uint64_t seed, std::string_view stream) : Philox(seed, stable_hash(stream)) {}
  Philox(uint64_t seed, uint64_t stream_hash);
  // The raw 128 bits of element `index`.
  std::array<uint32_t, 4> bits(uint64_t index) const;
  double uniform(uint64_t index) const;
  double normal(uint64_t index) const;
  // Uniform over [0, bound), without modulo bias beyond 2^-64. bound > 0.
  uint64_t integer(uint64_t index, uint64_t bound) const;

  // out[i] = the value of element begin + i, computed in double and rounded once: a + (b - a) * uniform, a + b * normal, uniform < a,
  // a + integer. Normals agree with normal() to a few units of the last bit of a double (polynomials for log and cosine). An element's
  // value depends neither on the range that it is filled with nor on the machine's vector width.
  void fill(double* out, int64_t count, uint64_t begin, const Distribution& distribution) const;
  void fill(float* out, int64_t count, uint64_t begin, const Distribution& distribution) const;
  // The same for Bernoulli values as a mask.
  void fill_mask(bool* out, int64_t count, uint64_t begin, double probability) const;

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 2> stream_;
};

}  // namespace hyper_parallel
