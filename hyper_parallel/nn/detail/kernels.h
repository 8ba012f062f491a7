// SPDX-License-Identifier: Apache-2.0
// CPU kernels over rows of contiguous memory, for float and double, threaded by parallel_for. Pointers don't alias unless said.
// Sums over rows (norm weights, losses) are kept in double and added in row order within a thread, threads in order.
#pragma once
#include <cstdint>

namespace hyper_parallel::kernels {

// y = x * rstd * weight over rows of `dim`; rstd: [rows], 1 / sqrt(mean(x^2) + eps).
template <class T>
void rms_norm(const T* x, const T* weight, T* y, T* rstd, int64_t rows, int64_t dim, double eps);
// dx, and dweight (overwritten; null if not wanted).
template <class T>
void rms_norm_backward(const T* x, const T* weight, const T* rstd, const T* dy, T* dx, T* dweight, int64_t rows, int64_t dim);

// x, y: [batch, seq, heads, dim]; cosine, sine: [seq, dim / 2], or [batch, seq, dim / 2] if table_per_batch. Pairs element j with j + dim
// / 2. direction +1 rotates forward, -1 back, which is also the gradient.
struct RotaryShape {
  int64_t batch, seq, heads, dim;
  bool table_per_batch;
};
template <class T>
void rotary(const T* x, const T* cosine, const T* sine, T* y, const RotaryShape& shape, int direction);

// out = gate * sigmoid(gate) * up.
template <class T>
void swiglu(const T* gate, const T* up, T* out, int64_t count);
template <class T>
void swiglu_backward(const T* gate, const T* up, const T* dout, T* dgate, T* dup, int64_t count);

// Returns the sum of -log softmax(logits)[label] over rows whose label is not `ignore`. With `gradient`, logits become the gradient of that
// sum (zeros in ignored rows); without, their content is lost.
template <class T>
double cross_entropy(T* logits, const int64_t* labels, int64_t rows, int64_t vocab, int64_t ignore, bool gradient);

// Cross entropy over `vocab` neighbouring columns of a wider row, whose other columns are elsewhere. First pass: logits become
// exp(logits - top), and stats [4][rows] get top, the sum of those, the target's logit (0 if it is elsewhere) and the sum of
// class_weights * logits (0 without weights). Labels count from this first column; `ignore` leaves a row out.
template <class T>
void softmax_shard(T* logits, const int64_t* labels, const T* class_weights, double* stats, int64_t rows, int64_t vocab, int64_t ignore);
// Second pass: row i becomes scale[i] * row - spread * class_weights - target[i] at its label.
template <class T>
void softmax_shard_gradient(T* exps, const int64_t* labels, const T* class_weights, const double* scale, const double* target,
                            double spread, int64_t rows, int64_t vocab);

// query: [batch, heads, dim], keys and values: [batch, capacity, kv_heads, dim] of which the first lengths[b] positions count.
struct DecodeShape {
  int64_t batch, heads, kv_heads, dim, capacity;
};
template <class T>
void decode_attention(const T* query, const T* keys, const T* values, const int64_t* lengths, T* out, const DecodeShape& shape,
                      double scale);

}  // namespace hyper_parallel::kernels
