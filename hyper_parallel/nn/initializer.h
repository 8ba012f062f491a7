// SPDX-License-Identifier: Apache-2.0
// How a parameter starts, and materialize(). A value is a function of (seed, full parameter name, global element index) alone, so every
// mesh and every shard gets bit-identical weights.
//
//   materialize(model, {.dtype = at::kFloat, .seed = 1});           // all of every parameter, on this rank
//   fill_initial(piece, Initializer::normal(0.02), 1, "norm.weight", begin);   // elements [begin, begin + piece.numel()) only
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace hyper_parallel {

class Module;
class Parameter;

struct Initializer {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  double a = 0;  // constant: the value; normal: mean; uniform: lower bound
  double b = 0;  // normal: standard deviation; uniform: upper bound

  static Initializer zeros() { return {}; }
  static Initializer ones() { return {Kind::kConstant, 1, 0}; }
  static Initializer normal(double std, double mean = 0) { return {Kind::kNormal, mean, std}; }
  static Initializer uniform(double low, double high) { return {Kind::kUniform, low, high}; }
};

// Fills the 1-d contiguous CPU tensor `piece` (f64, f32, bf16 or f16) with elements [begin, begin + numel) of the flattened parameter.
// Values are computed in f64 and rounded once.
void fill_initial(const at::Tensor& piece, const Initializer& initializer, uint64_t seed, const std::string& full_name, int64_t begin);

// The same for elements [begin, begin + piece.numel()) of the flattened part that a slot holds.
void fill_initial(const at::Tensor& piece, const Parameter& parameter, uint64_t seed, const std::string& full_name, int64_t begin);

struct MaterializeOptions {
  at::ScalarType dtype = at::kFloat;
  uint64_t seed = 0;
};
// Replaces every meta slot by a leaf tensor of its initial values; slots that already hold data are left alone.
void materialize(Module& root, const MaterializeOptions& options);

}  // namespace hyper_parallel
