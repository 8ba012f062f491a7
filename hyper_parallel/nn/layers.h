// SPDX-License-Identifier: Apache-2.0
// The layers of a decoder. Parameter names and shapes are Hugging Face's.
//
//   Linear up{child("up_proj"), {.in = 64, .out = 128}};
//   at::Tensor y = up(x);   // [..., 64] -> [..., 128]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "hyper_parallel/nn/module.h"

namespace hyper_parallel {

struct LinearOptions {
  int64_t in = 0, out = 0;
  bool bias = false;  // starts at zero, takes no weight decay
  Initializer initializer = Initializer::normal(0.02);
};

// x weight^T + bias; weight: [out, in].
class Linear : public ModuleOf<Linear> {
 public:
  Linear(Slot slot, const LinearOptions& options);
  at::Tensor forward(const at::Tensor& x);
  Parameter weight;
  std::optional<Parameter> bias;
  bool adds_bias = true;  // false: whoever sums partial results adds it after that
};

struct EmbeddingOptions {
  int64_t num = 0, dim = 0;
  Initializer initializer = Initializer::normal(0.02);
};

// DataError names an index outside [0, num).
void check_indices(const at::Tensor& indices, int64_t num);

// Rows of weight [num, dim]. Indices are checked. A rank that holds no rows gives zeros.
class Embedding : public ModuleOf<Embedding> {
 public:
  Embedding(Slot slot, const EmbeddingOptions& options);
  at::Tensor forward(const at::Tensor& indices);
  Parameter weight;
};

struct RmsNormOptions {
  int64_t size = 0;
  double eps = 1e-6;
};

// Over the last dim; weight: [size], starts at one, takes no weight decay.
class RmsNorm : public ModuleOf<RmsNorm> {
 public:
  RmsNorm(Slot slot, const RmsNormOptions& options);
  at::Tensor forward(const at::Tensor& x);
  Parameter weight;
  const double eps;
};

}  // namespace hyper_parallel
