// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/nn/layers.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/nn/functional.h"

namespace hyper_parallel {

Linear::Linear(Slot slot, const LinearOptions& options)
    : ModuleOf(std::move(slot)), weight(*this, "weight", {options.out, options.in}, options.initializer) {
  if (options.bias) bias.emplace(*this, "bias", std::vector<int64_t>{options.out}, Initializer::zeros(), /*decays=*/false);
}

at::Tensor Linear::forward(const at::Tensor& x) { return bias && adds_bias ? at::linear(x, weight, bias->tensor) : at::linear(x, weight); }

Embedding::Embedding(Slot slot, const EmbeddingOptions& options)
    : ModuleOf(std::move(slot)), weight(*this, "weight", {options.num, options.dim}, options.initializer) {}

void check_indices(const at::Tensor& indices, int64_t num) {
  const at::Tensor flat = indices.contiguous();
  const int64_t* index = flat.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i)
    if (index[i] < 0 || index[i] >= num) throw DataError(str("token ids: element ", i, " is ", index[i], " (allowed: 0 to ", num - 1, ")"));
}

at::Tensor Embedding::forward(const at::Tensor& indices) {
  check_indices(indices, weight.sizes[0]);
  if (weight.tensor.size(0) == 0) {  // a product over no columns: zeros with a graph
    std::vector<int64_t> sizes = indices.sizes().vec();
    sizes.push_back(0);
    return at::linear(at::empty(sizes, weight.tensor.options().requires_grad(false)), weight.tensor.t());
  }
  return at::embedding(weight, indices.contiguous());
}

RmsNorm::RmsNorm(Slot slot, const RmsNormOptions& options)
    : ModuleOf(std::move(slot)), weight(*this, "weight", {options.size}, Initializer::ones(), /*decays=*/false), eps(options.eps) {}

at::Tensor RmsNorm::forward(const at::Tensor& x) { return rms_norm(x, weight, eps); }

}  // namespace hyper_parallel
