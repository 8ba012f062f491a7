// SPDX-License-Identifier: Apache-2.0
// A plain MLP becomes tensor-parallel by a plan of two lines, over three ranks that its sizes don't divide into, and gives the same result.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/silu.h>

#include <cstdio>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/nn/layers.h"
#include "hyper_parallel/tensor_parallel/parallelize_module.h"

struct Mlp : hp::ModuleOf<Mlp> {
  using ModuleOf::ModuleOf;
  hp::Linear up{child("up"), {.in = 16, .out = 64, .bias = true}};
  hp::Linear down{child("down"), {.in = 64, .out = 16, .bias = true}};
  at::Tensor forward(const at::Tensor& x) { return down(at::silu(up(x))); }
};

int main() {
  const at::Tensor x = at::arange(4 * 16, at::kDouble).sin().view({4, 16});
  Mlp whole(hp::Module::root());
  hp::materialize(whole, {.dtype = at::kDouble, .seed = 1});
  const at::Tensor want = whole(x);

  bool equal = true;
  hp::run_threads(3, [&](hp::World& world) {
    Mlp mlp(hp::Module::root());
    const hp::DeviceMesh mesh(world.group(), {world.size()}, {"tp"});
    hp::parallelize_module(mlp, mesh, {{"up", hp::ColwiseParallel()}, {"down", hp::RowwiseParallel()}});
    hp::materialize(mlp, {.dtype = at::kDouble, .seed = 1});  // this rank's rows and columns, the same values
    const at::Tensor y = mlp(x);
    if (!at::allclose(y, want, 1e-12, 1e-12)) equal = false;
    if (world.rank() == 2) std::printf("rank 2 holds %ld of 64 rows\n", long(mlp.up.weight.tensor.size(0)));
  });
  std::printf(equal ? "equal to one rank\n" : "DIFFERENT from one rank\n");
  return equal ? 0 : 1;
}
