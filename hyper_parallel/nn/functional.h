// SPDX-License-Identifier: Apache-2.0
// Functions of a decoder. Each is one autograd node that keeps its inputs only: no intermediate of ATen's composites is stored.
//
//   at::Tensor h = swiglu(gate(x), up(x));                       // [..., ffn]
//   at::Tensor q = rotary(query.view({b, s, heads, d}), cosine, sine);
//   at::Tensor o = attention(q, k, v);                           // [b, s, heads * d], causal
//
// CPU tensors of f64, f32, bf16 or f16. Half types compute in f32 and round once at the end.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/silu.h>

#include <cstdint>
#include <optional>

namespace hyper_parallel {

using at::silu;

// silu(gate) * up; equal shapes.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// x / sqrt(mean(x^2, last dim) + eps) * weight; weight: [last dim].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Rotary position embedding, Hugging Face half-split convention: element j turns with element j + dim / 2.
// x: [batch, seq, heads, dim]; cosine, sine: [seq, dim / 2] or [batch, seq, dim / 2], of x's dtype (f32 for half types).
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine);

// Causal softmax(q k^T * scale) v with grouped heads: query head h reads key head h / (heads / kv_heads).
// query: [batch, seq, heads, dim]; key, value: [batch, seq, kv_heads, dim]. Returns [batch, seq, heads * dim]. scale: default 1 /
// sqrt(dim).
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, std::optional<double> scale = {});

// One new position a row against a cache, no gradient. query: [batch, 1, heads, dim]; keys, values: [batch, capacity, kv_heads, dim];
// row b reads positions [0, lengths[b]). Returns [batch, 1, heads * dim]; a row's result does not depend on the other rows.
at::Tensor cached_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& lengths);

}  // namespace hyper_parallel
