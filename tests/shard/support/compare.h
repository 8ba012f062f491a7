// SPDX-License-Identifier: Apache-2.0
// Runs a function on plain tensors on one rank, and on DTensors under every placement of its inputs, and compares values and gradients.
#pragma once
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <functional>

#include "hyper_parallel/base/string.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/dtensor/dtensor.h"
#include "tests/dtensor/support/reference.h"

namespace hyper_parallel::testing_support {

using Tensors = std::vector<at::Tensor>;
inline const WorldOptions kQuick{.timeout = std::chrono::seconds(30)};

struct OpCase {
  const char* name;
  std::function<at::Tensor(const Tensors&)> run;
  std::vector<Shape> shapes;
  bool gradient = true;
  bool partial_inputs = true;
};
inline void PrintTo(const OpCase& value, std::ostream* out) { *out << value.name; }

inline at::Tensor shard_of(const at::Tensor& whole, const Layout& layout) {
  return from_local(reference_local(whole, layout).clone(), layout, whole.sizes().vec()).tensor().detach();
}

struct Outcome {
  at::Tensor value;
  Tensors gradients;
};

// `make` turns a plain input into a leaf; the loss weighs the elements differently.
inline Outcome outcome_of(const OpCase& test, const Tensors& inputs, const std::function<at::Tensor(const at::Tensor&, size_t)>& make,
                          const std::function<at::Tensor(const at::Tensor&)>& replicate_tensor) {
  Tensors leaves;
  for (size_t index = 0; index < inputs.size(); ++index) {
    leaves.push_back(make(inputs[index], index));
    if (test.gradient && at::isFloatingType(inputs[index].scalar_type())) leaves.back().requires_grad_();
  }
  Outcome outcome{test.run(leaves), {}};
  if (test.gradient) {
    const at::Tensor weight = at::arange(outcome.value.numel(), at::kDouble).view(outcome.value.sizes()) * 0.25 + 0.5;
    (outcome.value * replicate_tensor(weight)).sum().backward();
    for (const at::Tensor& leaf : leaves) outcome.gradients.push_back(leaf.grad());
  }
  return outcome;
}

inline at::Tensor whole_of(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? DTensor(tensor).full_tensor().detach() : tensor.detach();
}

inline bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && at::allclose(a, b, 1e-9, 1e-11);
}

inline void compare_under(const OpCase& test, const Tensors& inputs, const Outcome& expected, const DeviceMesh& mesh,
                          const std::vector<Layout>& layouts) {
  std::string where = std::string(test.name) + " with";
  for (const Layout& layout : layouts) where += " " + to_string(layout.placements());
  SCOPED_TRACE(where);
  const Outcome found = outcome_of(
      test, inputs, [&](const at::Tensor& whole, size_t index) { return shard_of(whole, layouts[index]); },
      [&](const at::Tensor& whole) { return shard_of(whole, Layout(mesh)); });
  ASSERT_TRUE(close(whole_of(found.value), expected.value.detach())) << DTensor(found.value).to_string() << "\nexpected\n"
                                                                     << expected.value;
  for (size_t index = 0; index < found.gradients.size(); ++index) {
    ASSERT_EQ(found.gradients[index].defined(), expected.gradients[index].defined());
    if (!found.gradients[index].defined()) continue;
    ASSERT_TRUE(close(whole_of(found.gradients[index]), expected.gradients[index])) << "gradient of input " << index;
  }
}

inline std::vector<Placement> placements_of(const Shape& shape, bool with_partial) {
  std::vector<Placement> result{replicate()};
  for (size_t dim = 0; dim < shape.size(); ++dim) result.push_back(shard(int(dim)));
  if (with_partial) result.push_back(partial());
  return result;
}

// Every combination of one placement per input and axis; with several axes every `stride`-th.
inline void compare_everywhere(const OpCase& test, const std::vector<int64_t>& mesh_shape, size_t stride = 1) {
  at::manual_seed(1);
  Tensors inputs;
  for (const Shape& shape : test.shapes) inputs.push_back(at::rand(shape, at::kDouble) + 0.3);
  const auto same = [](const at::Tensor& whole) { return whole; };
  const Outcome expected = outcome_of(
      test, inputs, [](const at::Tensor& whole, size_t) { return whole.clone(); }, same);
  int64_t ranks = 1;
  for (int64_t size : mesh_shape) ranks *= size;
  const std::vector<std::string> names{"a", "b"};
  run_threads(
      int(ranks),
      [&](World& world) {
        const DeviceMesh mesh(world.group(), mesh_shape, {names.begin(), names.begin() + mesh_shape.size()});
        std::vector<std::vector<Placement>> choices;
        size_t combinations = 1;
        for (const Shape& shape : test.shapes)
          for (size_t axis = 0; axis < mesh_shape.size(); ++axis) {
            choices.push_back(placements_of(shape, test.partial_inputs));
            combinations *= choices.back().size();
          }
        for (size_t combination = 0; combination < combinations; combination += stride) {
          size_t rest = combination;
          std::vector<Layout> layouts;
          for (size_t input = 0; input < inputs.size(); ++input) {
            std::vector<Placement> placements;
            for (size_t axis = 0; axis < mesh_shape.size(); ++axis) {
              const auto& of_axis = choices[input * mesh_shape.size() + axis];
              placements.push_back(of_axis[rest % of_axis.size()]);
              rest /= of_axis.size();
            }
            layouts.emplace_back(mesh, placements);
          }
          compare_under(test, inputs, expected, mesh, layouts);
          if (testing::Test::HasFatalFailure()) return;
        }
      },
      kQuick);
}

}  // namespace hyper_parallel::testing_support
