// SPDX-License-Identifier: Apache-2.0
// Cosine and sine tables of rotary positions. Computed in f32 in the order that transformers uses, then converted, so that f64 models
// agree with it to f64 precision.
//
//   RotaryTable table({.dim = 64, .theta = 1e6});
//   auto [cosine, sine] = table.rows(512, at::kFloat);   // [512, 32] each
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "hyper_parallel/nn/rotary_options.h"

namespace hyper_parallel {

class RotaryTable {
 public:
  explicit RotaryTable(const RotaryOptions& options);
  // Positions [0, length): (cosine, sine), each [length, dim / 2], views of a table that is kept and grows. Half types get f32.
  // Not thread-safe: one table a rank.
  std::pair<at::Tensor, at::Tensor> rows(int64_t length, at::ScalarType dtype);
  const at::Tensor& frequencies() const { return frequencies_; }  // f32 [dim / 2], radians a position

 private:
  at::Tensor frequencies_, cosine_, sine_;
};

}  // namespace hyper_parallel
