// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/nn/rotary.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/where.h>

#include <bit>
#include <numbers>

#include "hyper_parallel/nn/detail/dispatch.h"

namespace hyper_parallel {
namespace {

at::Tensor plain_frequencies(const RotaryOptions& options) {
  const at::Tensor exponent = at::arange(0, options.dim, 2, at::kLong).to(at::kFloat).div(static_cast<double>(options.dim));
  return at::reciprocal(at::pow(options.theta, exponent));
}

at::Tensor llama3_frequencies(const at::Tensor& plain, const RotaryOptions& options) {
  const double original = static_cast<double>(options.original_positions);
  const double low_wavelength = original / options.low_frequency_factor, high_wavelength = original / options.high_frequency_factor;
  const at::Tensor wavelength = at::reciprocal(plain).mul(2 * std::numbers::pi);
  const at::Tensor slowed = at::where(wavelength.gt(low_wavelength), plain.div(options.factor), plain);
  const at::Tensor smooth = at::reciprocal(wavelength)
                                .mul(original)
                                .sub(options.low_frequency_factor)
                                .div(options.high_frequency_factor - options.low_frequency_factor);
  const at::Tensor blended = smooth.neg().add(1).mul(slowed).div(options.factor).add(smooth.mul(slowed));
  const at::Tensor between = wavelength.lt(high_wavelength).logical_or(wavelength.gt(low_wavelength)).logical_not();
  return at::where(between, blended, slowed);
}

}  // namespace

RotaryTable::RotaryTable(const RotaryOptions& options) {
  at::NoGradGuard no_grad;
  frequencies_ = plain_frequencies(options);
  if (options.scaling == RotaryOptions::Scaling::kLinear) frequencies_ = frequencies_.div(options.factor);
  if (options.scaling == RotaryOptions::Scaling::kLlama3) frequencies_ = llama3_frequencies(frequencies_, options);
}

std::pair<at::Tensor, at::Tensor> RotaryTable::rows(int64_t length, at::ScalarType dtype) {
  at::NoGradGuard no_grad;
  if (detail::is_half(dtype)) dtype = at::kFloat;
  if (!cosine_.defined() || cosine_.size(0) < length || cosine_.scalar_type() != dtype) {
    const auto capacity = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(length, 16))));
    const at::Tensor angles = at::mul(at::arange(capacity, at::kFloat).unsqueeze(1), frequencies_.unsqueeze(0));
    cosine_ = at::cos(angles).to(dtype);
    sine_ = at::sin(angles).to(dtype);
  }
  return {cosine_.narrow(0, 0, length), sine_.narrow(0, 0, length)};
}

}  // namespace hyper_parallel
