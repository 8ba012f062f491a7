// SPDX-License-Identifier: Apache-2.0
// Two ops of one's own on sharded tensors: plain functions on local tensors, and one line of YAML each (rules.yaml).
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <hyper_parallel/base/error.h>
#include <hyper_parallel/collectives/world.h>
#include <hyper_parallel/dtensor/dtensor.h>
#include <hyper_parallel/shard/rules.h>
#include <torch/library.h>

#include <cstdio>

namespace {

at::Tensor scale_rows(const at::Tensor& x, const at::Tensor& scale) { return x * scale.unsqueeze(1); }
at::Tensor row_dots(const at::Tensor& x, const at::Tensor& y) { return (x * y).sum({1}); }

TORCH_LIBRARY(my_ops, library) {
  library.def("scale_rows(Tensor x, Tensor scale) -> Tensor");
  library.def("row_dots(Tensor x, Tensor y) -> Tensor");
  library.impl("scale_rows", torch::dispatch(c10::DispatchKey::CPU, &scale_rows));
  library.impl("row_dots", torch::dispatch(c10::DispatchKey::CPU, &row_dots));
}

at::Tensor call(const char* op, const at::Tensor& a, const at::Tensor& b) {
  static auto& dispatcher = c10::Dispatcher::singleton();
  return dispatcher.findSchemaOrThrow(op, "").typed<at::Tensor(const at::Tensor&, const at::Tensor&)>().call(a, b);
}

}  // namespace

int main() {
  hp::load_rules("rules.yaml");
  hp::run_threads(2, [](hp::World& world) {
    const hp::DeviceMesh mesh(world.group(), {2}, {"tp"});
    const at::Tensor x = at::arange(15, at::kDouble).view({5, 3}), scale = at::arange(5, at::kDouble);
    const hp::DTensor rows =
        call("my_ops::scale_rows", hp::distribute_tensor(x, hp::Layout(mesh)("tp")), hp::distribute_tensor(scale, hp::Layout(mesh)("tp")));
    const hp::DTensor columns = hp::distribute_tensor(x, hp::Layout(mesh)("", "tp"));
    const hp::DTensor dots = call("my_ops::row_dots", columns, columns);
    const std::string kinds = rows.layout().to_string() + " and " + dots.layout().to_string();
    const bool right = at::equal(rows.full_tensor(), scale_rows(x, scale)) && at::equal(dots.full_tensor(), row_dots(x, x));
    if (world.rank() == 0) std::printf("scale_rows, row_dots: %s, %s\n", kinds.c_str(), right ? "as on one device" : "WRONG");
    if (!right) throw hp::RuntimeError("the sharded result differs");
  });
}
