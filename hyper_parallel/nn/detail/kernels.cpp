// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/nn/detail/kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "hyper_parallel/base/clones.h"
#include "hyper_parallel/base/parallel_for.h"

namespace hyper_parallel::kernels {
namespace {

constexpr int64_t kRowsPerSum = 32;  // rows added in T before they join the double sums

// Below 2 ulp on [-87, 88], 0 below and infinite above; branchless, so that loops over it vectorise.
HYPER_PARALLEL_INLINE float exp_of(float x) {
  const float clamped = std::min(std::max(x, -104.f), 88.8f);
  const float n = (clamped * 1.44269504f + 12582912.f) - 12582912.f;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.f;
  // Two factors: 2^n alone may leave the range of normal numbers.
  const int32_t whole = static_cast<int32_t>(n), half = whole >> 1;
  return p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((whole - half + 127) << 23);
}
HYPER_PARALLEL_INLINE double exp_of(double x) { return std::exp(x); }

template <class T>
HYPER_PARALLEL_INLINE T sigmoid(T x) {
  return T(1) / (T(1) + exp_of(-x));
}

template <class T>
HYPER_PARALLEL_INLINE T dot(const T* a, const T* b, int64_t count) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) sum += a[j] * b[j];
  return sum;
}

template <class T>
HYPER_PARALLEL_INLINE void rms_norm_rows(const T* x, const T* weight, T* y, T* rstd, int64_t rows, int64_t dim, double eps) {
  for (int64_t i = 0; i < rows; ++i, x += dim, y += dim) {
    const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(dot(x, x, dim)) / static_cast<double>(dim) + eps));
    rstd[i] = scale;
#pragma omp simd
    for (int64_t j = 0; j < dim; ++j) y[j] = x[j] * scale * weight[j];
  }
}

template <class T>
HYPER_PARALLEL_INLINE void rms_norm_backward_row(const T* x, const T* weight, T rstd, const T* dy, T* dx, T* sums, int64_t dim) {
  T mean = 0;
#pragma omp simd reduction(+ : mean)
  for (int64_t j = 0; j < dim; ++j) mean += dy[j] * weight[j] * x[j];
  mean *= rstd * rstd / static_cast<T>(dim);
#pragma omp simd
  for (int64_t j = 0; j < dim; ++j) {
    sums[j] += dy[j] * x[j] * rstd;
    dx[j] = rstd * (dy[j] * weight[j] - x[j] * mean);
  }
}

template <class T>
HYPER_PARALLEL_INLINE void rms_norm_backward_rows(const T* x, const T* weight, const T* rstd, const T* dy, T* dx, T* sums, double* totals,
                                                  int64_t rows, int64_t dim) {
  for (int64_t begin = 0; begin < rows; begin += kRowsPerSum) {
    std::fill_n(sums, dim, T(0));
    const int64_t end = std::min(rows, begin + kRowsPerSum);
    for (int64_t i = begin; i < end; ++i) rms_norm_backward_row(x + i * dim, weight, rstd[i], dy + i * dim, dx + i * dim, sums, dim);
    for (int64_t j = 0; j < dim; ++j) totals[j] += static_cast<double>(sums[j]);
  }
}

template <class T>
HYPER_PARALLEL_INLINE void rotary_heads(const T* x, const T* cosine, const T* sine, T* y, int64_t heads, int64_t half, T sign) {
  for (int64_t h = 0; h < heads; ++h, x += 2 * half, y += 2 * half) {
#pragma omp simd
    for (int64_t j = 0; j < half; ++j) {
      const T a = x[j], b = x[j + half], s = sign * sine[j];
      y[j] = a * cosine[j] - b * s;
      y[j + half] = b * cosine[j] + a * s;
    }
  }
}

template <class T>
HYPER_PARALLEL_INLINE void rotary_tokens(const T* x, const T* cosine, const T* sine, T* y, const RotaryShape& shape, T sign, int64_t begin,
                                         int64_t end) {
  const int64_t row = shape.heads * shape.dim, half = shape.dim / 2;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t at = (shape.table_per_batch ? t : t % shape.seq) * half;
    rotary_heads(x + t * row, cosine + at, sine + at, y + t * row, shape.heads, half, sign);
  }
}

template <class T>
HYPER_PARALLEL_INLINE void swiglu_range(const T* gate, const T* up, T* out, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

template <class T>
HYPER_PARALLEL_INLINE void swiglu_backward_range(const T* gate, const T* up, const T* dout, T* dgate, T* dup, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T s = sigmoid(gate[i]), silu = gate[i] * s;
    dgate[i] = dout[i] * up[i] * (s + silu * (T(1) - s));
    dup[i] = dout[i] * silu;
  }
}

template <class T>
HYPER_PARALLEL_INLINE T row_max(const T* x, int64_t count) {
  constexpr int64_t kLanes = 32;  // independent maxima: not every compiler reorders one
  T tops[kLanes];
  std::fill_n(tops, kLanes, x[0]);
  int64_t begin = 0;
  for (; begin + kLanes <= count; begin += kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) tops[lane] = std::max(tops[lane], x[begin + lane]);
  }
  for (; begin < count; ++begin) tops[0] = std::max(tops[0], x[begin]);
  return *std::max_element(tops, tops + kLanes);
}

// x = exp(x - shift); returns the sum. Blocks keep the float error of a long row small.
template <class T>
HYPER_PARALLEL_INLINE double row_exp(T* x, int64_t count, T shift) {
  constexpr int64_t kBlock = 1024;
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = begin; j < end; ++j) {
      x[j] = exp_of(x[j] - shift);
      sum += x[j];
    }
    total += static_cast<double>(sum);
  }
  return total;
}

template <class T>
HYPER_PARALLEL_INLINE void scale_row(T* x, int64_t count, T factor) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) x[j] *= factor;
}

template <class T>
HYPER_PARALLEL_INLINE double cross_entropy_rows(T* logits, const int64_t* labels, int64_t rows, int64_t vocab, int64_t ignore,
                                                bool gradient) {
  double loss = 0;
  for (int64_t i = 0; i < rows; ++i, logits += vocab) {
    if (labels[i] == ignore) {
      if (gradient) std::fill_n(logits, vocab, T(0));
      continue;
    }
    const T top = row_max(logits, vocab), target = logits[labels[i]];
    const double sum = row_exp(logits, vocab, top);
    loss += std::log(sum) - (static_cast<double>(target) - static_cast<double>(top));
    if (!gradient) continue;
    scale_row(logits, vocab, static_cast<T>(1 / sum));
    logits[labels[i]] -= T(1);
  }
  return loss;
}

template <class T>
HYPER_PARALLEL_INLINE void softmax_shard_rows(T* logits, const int64_t* labels, const T* class_weights, double* stats, int64_t total_rows,
                                              int64_t rows, int64_t vocab, int64_t ignore) {
  for (int64_t i = 0; i < rows; ++i, logits += vocab) {
    double &top = stats[i], &sum = stats[total_rows + i], &target = stats[2 * total_rows + i], &weighted = stats[3 * total_rows + i];
    top = -HUGE_VAL;
    sum = target = weighted = 0;
    if (labels[i] == ignore || vocab == 0) continue;
    if (labels[i] >= 0 && labels[i] < vocab) target = static_cast<double>(logits[labels[i]]);
    for (int64_t j = 0; class_weights != nullptr && j < vocab; ++j)
      weighted += static_cast<double>(class_weights[j]) * static_cast<double>(logits[j]);
    const T highest = row_max(logits, vocab);
    top = static_cast<double>(highest);
    sum = row_exp(logits, vocab, highest == T(-HUGE_VAL) ? T(0) : highest);  // -inf - -inf would be no number
  }
}

template <class T>
HYPER_PARALLEL_INLINE void softmax_shard_gradient_rows(T* exps, const int64_t* labels, const T* class_weights, const double* scale,
                                                       const double* target, double spread, int64_t rows, int64_t vocab) {
  for (int64_t i = 0; i < rows; ++i, exps += vocab) {
    if (scale[i] == 0 && target[i] == 0) {
      std::fill_n(exps, vocab, T(0));
      continue;
    }
    scale_row(exps, vocab, static_cast<T>(scale[i]));
    for (int64_t j = 0; class_weights != nullptr && j < vocab; ++j) exps[j] -= static_cast<T>(spread) * class_weights[j];
    if (labels[i] >= 0 && labels[i] < vocab) exps[labels[i]] -= static_cast<T>(target[i]);
  }
}

// One query head against `length` positions; keys and values advance by `stride` a position.
template <class T>
HYPER_PARALLEL_INLINE void decode_head(const T* query, const T* keys, const T* values, T* scores, T* out, int64_t length, int64_t stride,
                                       int64_t dim, T scale) {
  for (int64_t t = 0; t < length; ++t) scores[t] = dot(query, keys + t * stride, dim) * scale;
  const T top = row_max(scores, length);
  const T norm = static_cast<T>(1 / row_exp(scores, length, top));
  std::fill_n(out, dim, T(0));
  for (int64_t t = 0; t < length; ++t) {
    const T weight = scores[t] * norm;
#pragma omp simd
    for (int64_t j = 0; j < dim; ++j) out[j] += weight * values[t * stride + j];
  }
}

// Entry points, one per dtype, since target_clones takes no templates.
#define ENTRY_POINTS(T)                                                                                                                 \
  HYPER_PARALLEL_CLONES void entry_rms_norm(const T* x, const T* weight, T* y, T* rstd, int64_t rows, int64_t dim, double eps) {        \
    rms_norm_rows(x, weight, y, rstd, rows, dim, eps);                                                                                  \
  }                                                                                                                                     \
  HYPER_PARALLEL_CLONES void entry_rms_norm_backward(const T* x, const T* weight, const T* rstd, const T* dy, T* dx, T* sums,           \
                                                     double* totals, int64_t rows, int64_t dim) {                                       \
    rms_norm_backward_rows(x, weight, rstd, dy, dx, sums, totals, rows, dim);                                                           \
  }                                                                                                                                     \
  HYPER_PARALLEL_CLONES void entry_rotary(const T* x, const T* cosine, const T* sine, T* y, const RotaryShape& shape, T sign,           \
                                          int64_t begin, int64_t end) {                                                                 \
    rotary_tokens(x, cosine, sine, y, shape, sign, begin, end);                                                                         \
  }                                                                                                                                     \
  HYPER_PARALLEL_CLONES void entry_swiglu(const T* gate, const T* up, T* out, int64_t count) { swiglu_range(gate, up, out, count); }    \
  HYPER_PARALLEL_CLONES void entry_swiglu_backward(const T* gate, const T* up, const T* dout, T* dgate, T* dup, int64_t count) {        \
    swiglu_backward_range(gate, up, dout, dgate, dup, count);                                                                           \
  }                                                                                                                                     \
  HYPER_PARALLEL_CLONES double entry_cross_entropy(T* logits, const int64_t* labels, int64_t rows, int64_t vocab, int64_t ignore,       \
                                                   bool gradient) {                                                                     \
    return cross_entropy_rows(logits, labels, rows, vocab, ignore, gradient);                                                           \
  }                                                                                                                                     \
  HYPER_PARALLEL_CLONES void entry_softmax_shard(T* logits, const int64_t* labels, const T* weights, double* stats, int64_t total_rows, \
                                                 int64_t rows, int64_t vocab, int64_t ignore) {                                         \
    softmax_shard_rows(logits, labels, weights, stats, total_rows, rows, vocab, ignore);                                                \
  }                                                                                                                                     \
  HYPER_PARALLEL_CLONES void entry_softmax_shard_gradient(T* exps, const int64_t* labels, const T* weights, const double* scale,        \
                                                          const double* target, double spread, int64_t rows, int64_t vocab) {           \
    softmax_shard_gradient_rows(exps, labels, weights, scale, target, spread, rows, vocab);                                             \
  }                                                                                                                                     \
  HYPER_PARALLEL_CLONES void entry_decode_head(const T* query, const T* keys, const T* values, T* scores, T* out, int64_t length,       \
                                               int64_t stride, int64_t dim, T scale) {                                                  \
    decode_head(query, keys, values, scores, out, length, stride, dim, scale);                                                          \
  }
ENTRY_POINTS(float)
ENTRY_POINTS(double)
#undef ENTRY_POINTS

int64_t grain(int64_t row_elements) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, row_elements)); }

// run(begin, end) for pieces of [0, count) on this rank's threads.
template <class F>
void over_threads(int64_t count, int64_t grain, const F& run) {
  parallel_for(at::get_num_threads(), 0, count, grain, run);
}

// One contiguous share of the rows for each thread, so that the order of sums depends on nothing but the number of threads.
template <class F>
void parallel_shares(int64_t rows, const F& run) {
  const int64_t shares = std::clamp<int64_t>(at::get_num_threads(), 1, std::max<int64_t>(rows, 1));
  over_threads(shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) run(share, rows * share / shares, rows * (share + 1) / shares);
  });
}

}  // namespace

template <class T>
void rms_norm(const T* x, const T* weight, T* y, T* rstd, int64_t rows, int64_t dim, double eps) {
  over_threads(rows, grain(dim), [&](int64_t begin, int64_t end) {
    entry_rms_norm(x + begin * dim, weight, y + begin * dim, rstd + begin, end - begin, dim, eps);
  });
}

template <class T>
void rms_norm_backward(const T* x, const T* weight, const T* rstd, const T* dy, T* dx, T* dweight, int64_t rows, int64_t dim) {
  std::vector<double> totals(static_cast<size_t>(at::get_num_threads() * dim), 0.0);
  parallel_shares(rows, [&](int64_t share, int64_t begin, int64_t end) {
    std::vector<T> sums(static_cast<size_t>(dim));
    entry_rms_norm_backward(x + begin * dim, weight, rstd + begin, dy + begin * dim, dx + begin * dim, sums.data(),
                            totals.data() + share * dim, end - begin, dim);
  });
  if (dweight == nullptr) return;
  for (int64_t j = 0; j < dim; ++j) {
    double total = 0;
    for (size_t at = static_cast<size_t>(j); at < totals.size(); at += static_cast<size_t>(dim)) total += totals[at];
    dweight[j] = static_cast<T>(total);
  }
}

template <class T>
void rotary(const T* x, const T* cosine, const T* sine, T* y, const RotaryShape& shape, int direction) {
  over_threads(shape.batch * shape.seq, grain(shape.heads * shape.dim),
               [&](int64_t begin, int64_t end) { entry_rotary(x, cosine, sine, y, shape, static_cast<T>(direction), begin, end); });
}

template <class T>
void swiglu(const T* gate, const T* up, T* out, int64_t count) {
  over_threads(count, 8192, [&](int64_t begin, int64_t end) { entry_swiglu(gate + begin, up + begin, out + begin, end - begin); });
}

template <class T>
void swiglu_backward(const T* gate, const T* up, const T* dout, T* dgate, T* dup, int64_t count) {
  over_threads(count, 8192, [&](int64_t begin, int64_t end) {
    entry_swiglu_backward(gate + begin, up + begin, dout + begin, dgate + begin, dup + begin, end - begin);
  });
}

template <class T>
double cross_entropy(T* logits, const int64_t* labels, int64_t rows, int64_t vocab, int64_t ignore, bool gradient) {
  std::vector<double> losses(static_cast<size_t>(at::get_num_threads()), 0.0);
  parallel_shares(rows, [&](int64_t share, int64_t begin, int64_t end) {
    losses[static_cast<size_t>(share)] = entry_cross_entropy(logits + begin * vocab, labels + begin, end - begin, vocab, ignore, gradient);
  });
  double loss = 0;
  for (const double part : losses) loss += part;
  return loss;
}

template <class T>
void softmax_shard(T* logits, const int64_t* labels, const T* class_weights, double* stats, int64_t rows, int64_t vocab, int64_t ignore) {
  over_threads(rows, grain(vocab), [&](int64_t begin, int64_t end) {
    entry_softmax_shard(logits + begin * vocab, labels + begin, class_weights, stats + begin, rows, end - begin, vocab, ignore);
  });
}

template <class T>
void softmax_shard_gradient(T* exps, const int64_t* labels, const T* class_weights, const double* scale, const double* target,
                            double spread, int64_t rows, int64_t vocab) {
  over_threads(rows, grain(vocab), [&](int64_t begin, int64_t end) {
    entry_softmax_shard_gradient(exps + begin * vocab, labels + begin, class_weights, scale + begin, target + begin, spread, end - begin,
                                 vocab);
  });
}

template <class T>
void decode_attention(const T* query, const T* keys, const T* values, const int64_t* lengths, T* out, const DecodeShape& shape,
                      double scale) {
  const int64_t group = shape.heads / shape.kv_heads, stride = shape.kv_heads * shape.dim;
  over_threads(shape.batch * shape.heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> scores;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t b = unit / shape.heads, first = b * shape.capacity * stride + (unit % shape.heads) / group * shape.dim;
      scores.resize(static_cast<size_t>(lengths[b]));
      entry_decode_head(query + unit * shape.dim, keys + first, values + first, scores.data(), out + unit * shape.dim, lengths[b], stride,
                        shape.dim, static_cast<T>(scale));
    }
  });
}

#define INSTANTIATE(T)                                                                                                           \
  template void rms_norm<T>(const T*, const T*, T*, T*, int64_t, int64_t, double);                                               \
  template void rms_norm_backward<T>(const T*, const T*, const T*, const T*, T*, T*, int64_t, int64_t);                          \
  template void rotary<T>(const T*, const T*, const T*, T*, const RotaryShape&, int);                                            \
  template void swiglu<T>(const T*, const T*, T*, int64_t);                                                                      \
  template void swiglu_backward<T>(const T*, const T*, const T*, T*, T*, int64_t);                                               \
  template double cross_entropy<T>(T*, const int64_t*, int64_t, int64_t, int64_t, bool);                                         \
  template void softmax_shard<T>(T*, const int64_t*, const T*, double*, int64_t, int64_t, int64_t);                              \
  template void softmax_shard_gradient<T>(T*, const int64_t*, const T*, const double*, const double*, double, int64_t, int64_t); \
  template void decode_attention<T>(const T*, const T*, const T*, const int64_t*, T*, const DecodeShape&, double);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace hyper_parallel::kernels
