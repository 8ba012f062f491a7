// SPDX-License-Identifier: Apache-2.0
// New DTensors: every rank makes its shard only, without communication. Errors: LayoutError for a Partial layout.
//
//   DTensor w = zeros({512, 1536}, Layout(mesh)("", "tp"), {.dtype = at::kBFloat16});
#pragma once
#include <optional>

#include "hyper_parallel/dtensor/dtensor.h"
#include "hyper_parallel/dtensor/random.h"

namespace hyper_parallel {

struct FactoryOptions {
  at::ScalarType dtype = at::kFloat;
  c10::Device device = c10::kCPU;
  std::optional<Philox> stream = {};  // of rand and randn; default: the thread's next stream
};

DTensor empty(const Shape& sizes, const Layout& layout, const FactoryOptions& options = {});
DTensor zeros(const Shape& sizes, const Layout& layout, const FactoryOptions& options = {});
DTensor ones(const Shape& sizes, const Layout& layout, const FactoryOptions& options = {});
DTensor full(const Shape& sizes, double value, const Layout& layout, const FactoryOptions& options = {});
DTensor rand(const Shape& sizes, const Layout& layout, const FactoryOptions& options = {});   // uniform over [0, 1)
DTensor randn(const Shape& sizes, const Layout& layout, const FactoryOptions& options = {});  // normal, mean 0, deviation 1

}  // namespace hyper_parallel
