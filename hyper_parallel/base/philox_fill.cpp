// SPDX-License-Identifier: Apache-2.0
// Philox over ranges of elements. Compiled without contraction to fused multiply-adds, so every clone gives the same bits.
#include <algorithm>
#include <bit>
#include <cmath>

#include "hyper_parallel/base/clones.h"
#include "hyper_parallel/base/philox.h"

namespace hyper_parallel {
namespace {

constexpr int kLanes = 8;
struct Words {
  uint32_t lane[kLanes];
};

HYPER_PARALLEL_INLINE void philox_rounds(Words (&counter)[4], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9, key1 += 0xBB67AE85) {
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {
      const uint64_t product0 = uint64_t{0xD2511F53} * counter[0].lane[j], product1 = uint64_t{0xCD9E8D57} * counter[2].lane[j];
      counter[0].lane[j] = static_cast<uint32_t>(product1 >> 32) ^ counter[1].lane[j] ^ key0;
      counter[2].lane[j] = static_cast<uint32_t>(product0 >> 32) ^ counter[3].lane[j] ^ key1;
      counter[1].lane[j] = static_cast<uint32_t>(product1);
      counter[3].lane[j] = static_cast<uint32_t>(product0);
    }
  }
}

// 53 bits into [0, 1), exactly, by way of the mantissa: there is no vector conversion of 64-bit integers before AVX-512.
HYPER_PARALLEL_INLINE double unit(uint32_t high, uint32_t low) {
  const uint64_t bits = ((uint64_t{high} << 32) | low) >> 11;
  const double top = std::bit_cast<double>((bits >> 32) | 0x4330000000000000) - 0x1p52;
  const double bottom = std::bit_cast<double>((bits & 0xffffffff) | 0x4330000000000000) - 0x1p52;
  return (top * 0x1p32 + bottom) * 0x1p-53;
}

// fdlibm's log for normal x > 0.
HYPER_PARALLEL_INLINE double log_of(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x) + (0x3ff0000000000000 - 0x3fe6a09e00000000);
  const double mantissa = std::bit_cast<double>((bits & 0x000fffffffffffff) + 0x3fe6a09e00000000);
  const double exponent = std::bit_cast<double>((bits >> 52) | 0x4330000000000000) - (0x1p52 + 1023);
  const double f = mantissa - 1, s = f / (2 + f), z = s * s, w = z * z, half = 0.5 * f * f;
  const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd =
      z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  return exponent * 6.93147180369123816490e-01 - ((half - (s * (half + even + odd) + exponent * 1.90821492927058770002e-10)) - f);
}

// cos(2 pi u) for u in [0, 1): the quarter turns come off exactly, fdlibm's kernels do the rest.
HYPER_PARALLEL_INLINE double cosine_of_turns(double u) {
  const double quarters = 4 * u, q = (quarters + 0x1.8p52) - 0x1.8p52, a = (quarters - q) * 1.57079632679489661923, z = a * a;
  const double cosine =
      1 - 0.5 * z +
      z * z *
          (4.16666666666666019037e-02 +
           z * (-1.38888888888741095749e-03 +
                z * (2.48015872894767294178e-05 +
                     z * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)))));
  const double sine =
      a + a * z *
              (-1.66666666666666324348e-01 +
               z * (8.33333333332248946124e-03 +
                    z * (-1.98412698298579493134e-04 +
                         z * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))));
  const double value = q == 1 || q == 3 ? sine : cosine;
  return q == 1 || q == 2 ? -value : value;
}

struct Source {
  uint32_t key[2], stream[2];
};

HYPER_PARALLEL_INLINE void draw(Words (&words)[4], const Source& source, uint64_t first) {
  for (int j = 0; j < kLanes; ++j) {
    const uint64_t index = first + static_cast<uint64_t>(j);
    words[0].lane[j] = static_cast<uint32_t>(index);
    words[1].lane[j] = static_cast<uint32_t>(index >> 32);
    words[2].lane[j] = source.stream[0];
    words[3].lane[j] = source.stream[1];
  }
  philox_rounds(words, source.key[0], source.key[1]);
}

template <class T>
struct Uniform {
  double low, width;
  T high, below_high;
  HYPER_PARALLEL_INLINE static Uniform of(const Distribution& d) {
    const T low = static_cast<T>(d.a), high = static_cast<T>(d.b);
    return {d.a, d.b - d.a, high, std::nextafter(high, low)};
  }
  HYPER_PARALLEL_INLINE T operator()(const Words (&words)[4], int j) const {
    const T value = static_cast<T>(low + width * unit(words[0].lane[j], words[1].lane[j]));
    return value < high ? value : below_high;  // rounding may have reached the excluded end
  }
};

template <class T>
struct Normal {
  double mean, deviation;
  HYPER_PARALLEL_INLINE static Normal of(const Distribution& d) { return {d.a, d.b}; }
  HYPER_PARALLEL_INLINE T operator()(const Words (&words)[4], int j) const {
    const double radius = std::sqrt(-2 * log_of(1 - unit(words[0].lane[j], words[1].lane[j])));
    return static_cast<T>(mean + deviation * (radius * cosine_of_turns(unit(words[2].lane[j], words[3].lane[j]))));
  }
};

template <class T>
struct Bernoulli {
  double probability;
  HYPER_PARALLEL_INLINE static Bernoulli of(const Distribution& d) { return {d.a}; }
  HYPER_PARALLEL_INLINE T operator()(const Words (&words)[4], int j) const {
    return static_cast<T>(unit(words[0].lane[j], words[1].lane[j]) < probability);
  }
};

template <class T>
struct Integer {
  double low;
  uint64_t bound;
  HYPER_PARALLEL_INLINE static Integer of(const Distribution& d) { return {d.a, static_cast<uint64_t>(d.b - d.a)}; }
  HYPER_PARALLEL_INLINE T operator()(const Words (&words)[4], int j) const {
    const uint64_t word = (uint64_t{words[0].lane[j]} << 32) | words[1].lane[j];
    return static_cast<T>(low + static_cast<double>(static_cast<uint64_t>((static_cast<unsigned __int128>(word) * bound) >> 64)));
  }
};

template <class T, class Value>
HYPER_PARALLEL_INLINE void fill_block(T* out, uint64_t first, const Source& source, const Value& value) {
  Words words[4];
  draw(words, source, first);
#pragma omp simd
  for (int j = 0; j < kLanes; ++j) out[j] = value(words, j);
}

template <class Value, class T>
HYPER_PARALLEL_INLINE void fill_blocks(T* out, int64_t count, uint64_t first, const Source& source, const Value& value) {
  int64_t done = 0;
  for (; done + kLanes <= count; done += kLanes) fill_block(out + done, first + static_cast<uint64_t>(done), source, value);
  if (done == count) return;
  T edge[kLanes];
  fill_block(edge, first + static_cast<uint64_t>(done), source, value);
  std::copy_n(edge, count - done, out + done);
}

template <class T>
HYPER_PARALLEL_INLINE void fill_any(T* out, int64_t count, uint64_t begin, const Source& source, const Distribution& distribution) {
  switch (distribution.kind) {
    case Distribution::Kind::kUniform:
      return fill_blocks(out, count, begin, source, Uniform<T>::of(distribution));
    case Distribution::Kind::kNormal:
      return fill_blocks(out, count, begin, source, Normal<T>::of(distribution));
    case Distribution::Kind::kBernoulli:
      return fill_blocks(out, count, begin, source, Bernoulli<T>::of(distribution));
    case Distribution::Kind::kInteger:
      return fill_blocks(out, count, begin, source, Integer<T>::of(distribution));
  }
}

HYPER_PARALLEL_CLONES void fill_doubles(double* out, int64_t count, uint64_t begin, const Source& source, const Distribution& d) {
  fill_any(out, count, begin, source, d);
}
HYPER_PARALLEL_CLONES void fill_floats(float* out, int64_t count, uint64_t begin, const Source& source, const Distribution& d) {
  fill_any(out, count, begin, source, d);
}
HYPER_PARALLEL_CLONES void fill_bools(bool* out, int64_t count, uint64_t begin, const Source& source, double probability) {
  fill_blocks(out, count, begin, source, Bernoulli<bool>{probability});
}

}  // namespace

void Philox::fill(double* out, int64_t count, uint64_t begin, const Distribution& distribution) const {
  fill_doubles(out, count, begin, {{key_[0], key_[1]}, {stream_[0], stream_[1]}}, distribution);
}
void Philox::fill(float* out, int64_t count, uint64_t begin, const Distribution& distribution) const {
  fill_floats(out, count, begin, {{key_[0], key_[1]}, {stream_[0], stream_[1]}}, distribution);
}
void Philox::fill_mask(bool* out, int64_t count, uint64_t begin, double probability) const {
  fill_bools(out, count, begin, {{key_[0], key_[1]}, {stream_[0], stream_[1]}}, probability);
}

}  // namespace hyper_parallel
