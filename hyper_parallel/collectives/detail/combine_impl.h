// SPDX-License-Identifier: Apache-2.0
// Body of the combine kernels, compiled once per instruction set (HYPER_PARALLEL_COMBINE_TABLE names the table). Includes nothing with
// inline functions, and everything is in an unnamed namespace, so that no code for a newer machine can be picked by the linker for common
// use.
#include <immintrin.h>

#include "hyper_parallel/collectives/detail/combine.h"

namespace hyper_parallel::detail {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
inline void stream_vector(void* to, const void* from) { _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from)); }
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
inline void stream_vector(void* to, const void* from) {
  _mm256_stream_si256(static_cast<__m256i*>(to), _mm256_loadu_si256(static_cast<const __m256i*>(from)));
}
#else
constexpr int kVectorBytes = 16;
inline void stream_vector(void* to, const void* from) {
  _mm_stream_si128(static_cast<__m128i*>(to), _mm_loadu_si128(static_cast<const __m128i*>(from)));
}
#endif
constexpr int kVectors = 256 / kVectorBytes;  // accumulators: four cache lines of them

template <class T, int kLanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * kLanes)));
};
template <class To, class From>
inline To bit_copy(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
template <class To>
inline To load_unaligned(const void* from) {
  To to;
  __builtin_memcpy(&to, from, sizeof to);
  return to;
}

// An element type: how it is stored, in what it accumulates, and how a vector of it is read and written.
template <class T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static constexpr int kLanes = kVectorBytes / sizeof(T);
  using Vector = typename VectorOf<T, kLanes>::type;
  using StoredVector = Vector;
  static Vector widen(StoredVector v) { return v; }
  static StoredVector narrow(Vector v) { return v; }
  static Accumulator widen_one(Stored v) { return v; }
  static Stored narrow_one(Accumulator v) { return v; }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static constexpr int kLanes = kVectorBytes / sizeof(float);
  using Vector = VectorOf<float, kLanes>::type;
  using Bits = VectorOf<uint32_t, kLanes>::type;
  using StoredVector = VectorOf<uint16_t, kLanes>::type;
  static Vector widen(StoredVector v) { return bit_copy<Vector>(__builtin_convertvector(v, Bits) << 16); }
  static StoredVector narrow(Vector v) {
    const Bits bits = bit_copy<Bits>(v);
    const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? (bits | 0x400000) >> 16 : rounded, StoredVector);
  }
  static float widen_one(uint16_t v) { return bit_copy<float>(uint32_t(v) << 16); }
  static uint16_t narrow_one(float v) {
    const uint32_t bits = bit_copy<uint32_t>(v);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits | 0x400000) >> 16);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

inline float half_to_float(uint16_t half) {
  const uint32_t magnitude = uint32_t(half & 0x7fff) << 13;
  uint32_t bits = bit_copy<uint32_t>(bit_copy<float>(magnitude) * 0x1p112f);  // moves the exponent's bias; exact for subnormals too
  if (magnitude >= 0x0f800000) bits = magnitude | 0x7f800000;                 // infinity and NaN
  return bit_copy<float>(bits | (uint32_t(half & 0x8000) << 16));
}
inline uint16_t float_to_half(float value) {
  const uint32_t bits = bit_copy<uint32_t>(value), magnitude = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // rounds to infinity
  if (magnitude < 0x38800000) {                                 // subnormal: the addition rounds to a multiple of 2^-24
    return uint16_t(sign | (bit_copy<uint32_t>(bit_copy<float>(magnitude) + 0.5f) - 0x3f000000));
  }
  return uint16_t(sign | ((magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13));
}

struct Float16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static constexpr int kLanes = kVectorBytes / sizeof(float);
  using Vector = VectorOf<float, kLanes>::type;
  using StoredVector = VectorOf<uint16_t, kLanes>::type;
#if defined(__AVX512F__)
  static Vector widen(StoredVector v) { return bit_copy<Vector>(_mm512_cvtph_ps(bit_copy<__m256i>(v))); }
  static StoredVector narrow(Vector v) {
    return bit_copy<StoredVector>(_mm512_cvtps_ph(bit_copy<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#elif defined(__F16C__)
  static Vector widen(StoredVector v) { return bit_copy<Vector>(_mm256_cvtph_ps(bit_copy<__m128i>(v))); }
  static StoredVector narrow(Vector v) {
    return bit_copy<StoredVector>(_mm256_cvtps_ph(bit_copy<__m256>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#else
  static Vector widen(StoredVector v) {
    Vector out;
    for (int i = 0; i < kLanes; ++i) out[i] = half_to_float(v[i]);
    return out;
  }
  static StoredVector narrow(Vector v) {
    StoredVector out;
    for (int i = 0; i < kLanes; ++i) out[i] = float_to_half(v[i]);
    return out;
  }
#endif
  static float widen_one(uint16_t v) { return half_to_float(v); }
  static uint16_t narrow_one(float v) { return float_to_half(v); }
};

struct Bool : Plain<uint8_t> {};

template <class E, CombineOp kOp, class V>
inline V apply(V a, V b) {
  constexpr bool kIsBool = __is_same(E, Bool);
  if constexpr (kIsBool) {
    if constexpr (kOp == CombineOp::kSum || kOp == CombineOp::kMax)
      return a | b;
    else
      return a & b;
  } else if constexpr (kOp == CombineOp::kSum) {
    return a + b;
  } else if constexpr (kOp == CombineOp::kProd) {
    return a * b;
  } else if constexpr (kOp == CombineOp::kMin) {
    V smaller = a < b ? a : b;
    return a != a ? a : smaller;
  } else {
    V larger = a > b ? a : b;
    return a != a ? a : larger;
  }
}

template <class E, CombineOp kOp, bool kStream>
void combine_range(const CombineTask& task) {
  using Stored = typename E::Stored;
  using Accumulator = typename E::Accumulator;
  using Vector = typename E::Vector;
  using StoredVector = typename E::StoredVector;
  constexpr int kLanes = E::kLanes;
  constexpr int64_t kStep = int64_t(kLanes) * kVectors;
  constexpr bool kFloating = Accumulator(0.5) != Accumulator(0);
  const auto input = [&](int k) { return static_cast<const Stored*>(task.inputs[k]); };
  int64_t i = 0;
  for (; i + kStep <= task.count; i += kStep) {
    Vector v[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) v[j] = E::widen(load_unaligned<StoredVector>(input(0) + i + j * kLanes));
    for (int k = 1; k < task.num_inputs; ++k) {
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) v[j] = apply<E, kOp>(v[j], E::widen(load_unaligned<StoredVector>(input(k) + i + j * kLanes)));
    }
    if constexpr (kFloating) {
      if (task.divisor != 1) {
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) v[j] = v[j] / Accumulator(task.divisor);
      }
    }
    StoredVector result[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) result[j] = E::narrow(v[j]);
    for (int o = 0; o < task.num_outputs; ++o) {
      char* to = reinterpret_cast<char*>(static_cast<Stored*>(task.outputs[o]) + i);
      if constexpr (kStream) {
        constexpr int kParts = int(sizeof result) / kVectorBytes;
#pragma GCC unroll 16
        for (int j = 0; j < kParts; ++j) stream_vector(to + j * kVectorBytes, reinterpret_cast<const char*>(result) + j * kVectorBytes);
      } else {
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) __builtin_memcpy(to + j * sizeof(StoredVector), &result[j], sizeof(StoredVector));
      }
    }
  }
  for (; i < task.count; ++i) {
    Accumulator v = E::widen_one(input(0)[i]);
    for (int k = 1; k < task.num_inputs; ++k) v = apply<E, kOp>(v, E::widen_one(input(k)[i]));
    if constexpr (kFloating) {
      if (task.divisor != 1) v = v / Accumulator(task.divisor);
    }
    const Stored result = E::narrow_one(v);
    for (int o = 0; o < task.num_outputs; ++o) static_cast<Stored*>(task.outputs[o])[i] = result;
  }
  if constexpr (kStream) _mm_sfence();
}

template <class E, CombineOp kOp>
void combine(const CombineTask& task) {
  bool stream = task.nontemporal;
  for (int o = 0; o < task.num_outputs; ++o) stream = stream && reinterpret_cast<uintptr_t>(task.outputs[o]) % kVectorBytes == 0;
  if (stream)
    combine_range<E, kOp, true>(task);
  else
    combine_range<E, kOp, false>(task);
}

#define HYPER_PARALLEL_COMBINE_ROW(E) \
  { combine<E, CombineOp::kSum>, combine<E, CombineOp::kMin>, combine<E, CombineOp::kMax>, combine<E, CombineOp::kProd> }
constexpr CombineTable kTable = {HYPER_PARALLEL_COMBINE_ROW(Plain<double>),
                                 HYPER_PARALLEL_COMBINE_ROW(Plain<float>),
                                 HYPER_PARALLEL_COMBINE_ROW(BFloat16),
                                 HYPER_PARALLEL_COMBINE_ROW(Float16),
                                 HYPER_PARALLEL_COMBINE_ROW(Plain<int8_t>),
                                 HYPER_PARALLEL_COMBINE_ROW(Plain<uint8_t>),
                                 HYPER_PARALLEL_COMBINE_ROW(Plain<int16_t>),
                                 HYPER_PARALLEL_COMBINE_ROW(Plain<uint16_t>),
                                 HYPER_PARALLEL_COMBINE_ROW(Plain<int32_t>),
                                 HYPER_PARALLEL_COMBINE_ROW(Plain<uint32_t>),
                                 HYPER_PARALLEL_COMBINE_ROW(Plain<int64_t>),
                                 HYPER_PARALLEL_COMBINE_ROW(Plain<uint64_t>),
                                 HYPER_PARALLEL_COMBINE_ROW(Bool)};

}  // namespace

const CombineTable& HYPER_PARALLEL_COMBINE_TABLE() { return kTable; }

}  // namespace hyper_parallel::detail
