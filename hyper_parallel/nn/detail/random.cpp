// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/nn/detail/random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "hyper_parallel/base/philox.h"
#include "hyper_parallel/nn/detail/clones.h"

namespace hyper_parallel::kernels {
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

HYPER_PARALLEL_INLINE void normal_block(double* out, uint64_t first, const uint32_t* key, const uint32_t* stream, double mean, double std) {
  Words counter[4];
  for (int j = 0; j < kLanes; ++j) {
    const uint64_t index = first + static_cast<uint64_t>(j);
    counter[0].lane[j] = static_cast<uint32_t>(index);
    counter[1].lane[j] = static_cast<uint32_t>(index >> 32);
    counter[2].lane[j] = stream[0];
    counter[3].lane[j] = stream[1];
  }
  philox_rounds(counter, key[0], key[1]);
#pragma omp simd
  for (int j = 0; j < kLanes; ++j) {
    const double radius = std::sqrt(-2 * log_of(1 - unit(counter[0].lane[j], counter[1].lane[j])));
    out[j] = mean + std * (radius * cosine_of_turns(unit(counter[2].lane[j], counter[3].lane[j])));
  }
}

HYPER_PARALLEL_CLONES void normal_blocks(double* out, int64_t blocks, uint64_t first, const uint32_t* key, const uint32_t* stream,
                                         double mean, double std) {
  for (int64_t i = 0; i < blocks; ++i) normal_block(out + i * kLanes, first + static_cast<uint64_t>(i * kLanes), key, stream, mean, std);
}

}  // namespace

void fill_normal(double* out, int64_t count, uint64_t seed, std::string_view stream, uint64_t begin, double mean, double std) {
  const uint64_t name = stable_hash(stream);
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const uint32_t words[2] = {static_cast<uint32_t>(name), static_cast<uint32_t>(name >> 32)};
  // Blocks start at multiples of eight, so that an element always takes the same lane through the same code.
  double edge[kLanes];
  while (count > 0) {
    const uint64_t first = begin / kLanes * kLanes;
    if (first == begin && count >= kLanes) {
      const int64_t blocks = count / kLanes;
      normal_blocks(out, blocks, first, key, words, mean, std);
      out += blocks * kLanes, count -= blocks * kLanes, begin += static_cast<uint64_t>(blocks * kLanes);
      continue;
    }
    const int64_t skipped = static_cast<int64_t>(begin - first), taken = std::min<int64_t>(count, kLanes - skipped);
    normal_blocks(edge, 1, first, key, words, mean, std);
    std::copy_n(edge + skipped, taken, out);
    out += taken, count -= taken, begin += static_cast<uint64_t>(taken);
  }
}

}  // namespace hyper_parallel::kernels
