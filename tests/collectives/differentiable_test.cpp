// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/differentiable.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"

namespace hyper_parallel {
namespace {

namespace cd = collectives::differentiable;
using Tensors = std::vector<at::Tensor>;

at::Tensor value(int rank, at::IntArrayRef shape, int salt) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return ((at::arange(numel, at::kDouble) + 1) * (rank + 2 + salt * 0.7)).sin().view(shape);
}

struct Case {
  std::string name;
  std::function<std::vector<int64_t>(int size, int rank)> input_shape;
  std::function<at::Tensor(const ProcessGroup&, const at::Tensor&)> run;
  // The same function of all ranks' inputs on one rank, made of at:: operations only.
  std::function<Tensors(const Tensors&)> reference;
};

at::Tensor sum(const Tensors& all) {
  at::Tensor total = all[0];
  for (size_t r = 1; r < all.size(); ++r) total = total + all[r];
  return total;
}
Tensors same(const at::Tensor& y, size_t count) { return Tensors(count, y); }
int64_t rows(int size, int rank) { return (rank * 2 + size) % 3; }  // uneven, some 0
std::vector<int64_t> all_rows(int size) {
  std::vector<int64_t> result;
  for (int r = 0; r < size; ++r) result.push_back(rows(size, r));
  return result;
}
int64_t routed(int from, int to) { return (from * 2 + to) % 3; }

const std::vector<Case>& cases() {
  static const std::vector<Case> table{
      {"all_reduce",
       [](int, int) {
         return std::vector<int64_t>{3, 2};
       },
       [](const ProcessGroup& g, const at::Tensor& x) { return cd::all_reduce(g, x); },
       [](const Tensors& all) { return same(sum(all), all.size()); }},
      {"all_gather",
       [](int, int) {
         return std::vector<int64_t>{2, 3};
       },
       [](const ProcessGroup& g, const at::Tensor& x) { return cd::all_gather(g, x, -1); },
       [](const Tensors& all) { return same(at::cat(all, 1), all.size()); }},
      {"uneven_all_gather",
       [](int n, int r) {
         return std::vector<int64_t>{2, rows(n, r)};
       },
       [](const ProcessGroup& g, const at::Tensor& x) { return cd::all_gather(g, x, 1, all_rows(g.size())); },
       [](const Tensors& all) { return same(at::cat(all, 1), all.size()); }},
      {"reduce_scatter",
       [](int n, int) {
         return std::vector<int64_t>{2, 3 * n};
       },
       [](const ProcessGroup& g, const at::Tensor& x) { return cd::reduce_scatter(g, x, 1); },
       [](const Tensors& all) { return sum(all).split(3, 1); }},
      {"uneven_reduce_scatter",
       [](int n, int) {
         const auto sizes = all_rows(n);
         return std::vector<int64_t>{std::accumulate(sizes.begin(), sizes.end(), int64_t(0)), 2};
       },
       [](const ProcessGroup& g, const at::Tensor& x) { return cd::reduce_scatter(g, x, 0, all_rows(g.size())); },
       [](const Tensors& all) { return sum(all).split_with_sizes(all_rows(int(all.size())), 0); }},
      {"all_to_all",
       [](int n, int) {
         return std::vector<int64_t>{2 * n, 3};
       },
       [](const ProcessGroup& g, const at::Tensor& x) { return cd::all_to_all(g, x, 0, 1); },
       [](const Tensors& all) {
         Tensors results;
         for (size_t to = 0; to < all.size(); ++to) {
           Tensors parts;
           for (const at::Tensor& x : all) parts.push_back(x.narrow(0, int64_t(to) * 2, 2));
           results.push_back(at::cat(parts, 1));
         }
         return results;
       }},
      {"all_to_all_rows",
       [](int n, int r) {
         int64_t total = 0;
         for (int to = 0; to < n; ++to) total += routed(r, to);
         return std::vector<int64_t>{total, 2};
       },
       [](const ProcessGroup& g, const at::Tensor& x) {
         std::vector<int64_t> in, out;
         for (int r = 0; r < g.size(); ++r) in.push_back(routed(g.rank(), r)), out.push_back(routed(r, g.rank()));
         return cd::all_to_all_rows(g, x, out, in);
       },
       [](const Tensors& all) {
         Tensors results;
         for (int to = 0; to < int(all.size()); ++to) {
           Tensors parts;
           for (int from = 0; from < int(all.size()); ++from) {
             int64_t before = 0;
             for (int other = 0; other < to; ++other) before += routed(from, other);
             parts.push_back(all[from].narrow(0, before, routed(from, to)));
           }
           results.push_back(at::cat(parts));
         }
         return results;
       }},
      {"broadcast", [](int, int) { return std::vector<int64_t>{4}; },
       [](const ProcessGroup& g, const at::Tensor& x) { return cd::broadcast(g, x, g.size() - 1); },
       [](const Tensors& all) { return same(all.back(), all.size()); }},
      {"shift", [](int, int) { return std::vector<int64_t>{4}; },
       [](const ProcessGroup& g, const at::Tensor& x) { return cd::shift(g, x, 1); },
       [](const Tensors& all) {
         Tensors results;
         for (size_t r = 0; r < all.size(); ++r) results.push_back(all[(r + all.size() - 1) % all.size()]);
         return results;
       }},
  };
  return table;
}

Tensors make_inputs(const Case& row, int size) {
  Tensors all;
  for (int r = 0; r < size; ++r) all.push_back(value(r, row.input_shape(size, r), 0).set_requires_grad(true));
  return all;
}

// A loss whose first and second derivatives depend on every element and on the rank.
at::Tensor loss_of(const at::Tensor& y, int rank) { return (y * y * y * value(rank, y.sizes(), 1)).sum(); }

class Differentiable : public testing::TestWithParam<int> {};

TEST_P(Differentiable, BackwardIsThatOfAllLossesOnOneRank) {
  for (const Case& row : cases()) {
    SCOPED_TRACE(row.name);
    const Tensors all = make_inputs(row, GetParam());
    const Tensors expected = row.reference(all);
    at::Tensor total = loss_of(expected[0], 0);
    for (size_t r = 1; r < expected.size(); ++r) total = total + loss_of(expected[r], int(r));
    const Tensors gradients = torch::autograd::grad({total}, all, {}, true, true, true);
    at::Tensor penalty = total * 0;
    for (const at::Tensor& gradient : gradients)
      if (gradient.defined()) penalty = penalty + (gradient * gradient).sum();
    const Tensors second = torch::autograd::grad({penalty}, all, {}, true, false, true);
    run_threads(GetParam(),
                [&](World& world) {
                  const int me = world.rank();
                  const at::Tensor x = value(me, row.input_shape(world.size(), me), 0).set_requires_grad(true);
                  const at::Tensor y = row.run(world.group(), x);
                  EXPECT_TRUE(at::allclose(y, expected[me], 1e-12, 1e-12));
                  const at::Tensor gradient = torch::autograd::grad({loss_of(y, me)}, {x}, {}, true, true)[0];
                  EXPECT_TRUE(at::allclose(gradient, gradients[me].defined() ? gradients[me] : x * 0, 1e-9, 1e-12)) << "first derivative";
                  const at::Tensor again = torch::autograd::grad({(gradient * gradient).sum()}, {x})[0];
                  EXPECT_TRUE(at::allclose(again, second[me].defined() ? second[me] : x * 0, 1e-9, 1e-12)) << "second derivative";
                },
                {.timeout = std::chrono::seconds(10)});
  }
}

// A two-layer block split as Megatron does; every rank computes the same loss, which counts once.
TEST_P(Differentiable, MegatronPairs) {
  const int n = GetParam();
  const at::Tensor x0 = value(0, {3, 4}, 0), a0 = value(1, {4, 2 * n}, 0), b0 = value(2, {2 * n, 5}, 0);
  const at::Tensor x1 = x0.clone().set_requires_grad(true), a1 = a0.clone().set_requires_grad(true),
                   b1 = b0.clone().set_requires_grad(true);
  const at::Tensor expected = x1.matmul(a1).sin().matmul(b1);
  const Tensors gradients = torch::autograd::grad({loss_of(expected, 0)}, {x1, a1, b1});
  run_threads(n,
              [&](World& world) {
                const ProcessGroup& group = world.group();
                const int me = world.rank();
                const at::Tensor x = x0.clone().set_requires_grad(true), a = a0.narrow(1, 2 * me, 2).clone().set_requires_grad(true);
                const at::Tensor b = b0.narrow(0, 2 * me, 2).clone().set_requires_grad(true);
                const at::Tensor y = cd::reduce_from_group(group, cd::copy_to_group(group, x).matmul(a).sin().matmul(b));
                EXPECT_TRUE(at::allclose(y, expected, 1e-9, 1e-12));
                const Tensors mine = torch::autograd::grad({loss_of(y, 0)}, {x, a, b});
                EXPECT_TRUE(at::allclose(mine[0], gradients[0], 1e-9, 1e-12));
                EXPECT_TRUE(at::allclose(mine[1], gradients[1].narrow(1, 2 * me, 2), 1e-9, 1e-12));
                EXPECT_TRUE(at::allclose(mine[2], gradients[2].narrow(0, 2 * me, 2), 1e-9, 1e-12));

                const at::Tensor whole = a0.clone().set_requires_grad(true);
                const at::Tensor back = cd::gather_from_group(group, cd::scatter_to_group(group, whole, 1).sin(), 1);
                EXPECT_TRUE(at::allclose(back, a0.sin(), 1e-12, 1e-12));
                EXPECT_TRUE(at::allclose(torch::autograd::grad({back.sum()}, {whole})[0], a0.cos(), 1e-9, 1e-12));
              },
              {.timeout = std::chrono::seconds(10)});
}

TEST(DifferentiableErrors, BadDimsAndSizes) {
  run_threads(2, [](World& world) {
    const ProcessGroup& group = world.group();
    EXPECT_THROW(cd::reduce_scatter(group, value(0, {3, 2}, 0), 0), CollectiveError);
    EXPECT_THROW(cd::all_gather(group, value(0, {3, 2}, 0), 2), CollectiveError);
    EXPECT_THROW(cd::all_gather(group, value(0, {3, 2}, 0), 0, std::vector<int64_t>{1, 2}), CollectiveError);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Differentiable, testing::Values(1, 2, 3, 4, 8));

}  // namespace
}  // namespace hyper_parallel
