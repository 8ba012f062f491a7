// SPDX-License-Identifier: Apache-2.0
// Other forms of ops: out=, in place where the op can't keep the layout, in-place views; and coalesced redistribution of lists.
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/permute_copy.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/comm_debug.h"
#include "tests/shard/support/compare.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
using testing::HasSubstr;

at::Tensor example(const Shape& shape) {
  int64_t numel = 1;
  for (int64_t size : shape) numel *= size;
  return (at::arange(numel, at::kDouble) * 7).remainder(11).view(shape) + 1;
}

std::vector<Layout> layouts_of(const DeviceMesh& mesh) { return {Layout(mesh), Layout(mesh)("a"), Layout(mesh)("", "a")}; }

template <class Body>
void on_ranks(int ranks, const Body& body) {
  run_threads(
      ranks, [&](World& world) { body(DeviceMesh(world.group(), {world.size()}, {"a"})); }, kQuick);
}

TEST(Out, ResultTakesTheLayoutOfOut) {
  on_ranks(3, [](const DeviceMesh& mesh) {
    const at::Tensor a = example({5, 4}), b = example({4, 4});
    for (const Layout& target : layouts_of(mesh))
      for (const Layout& source : layouts_of(mesh)) {
        SCOPED_TRACE(source.to_string() + " into " + target.to_string());
        at::Tensor out = shard_of(a * 0, target), column = shard_of(a.sum({1}) * 0, Layout(mesh)("a"));
        at::mm_out(out, shard_of(a, source), shard_of(b, source));
        EXPECT_TRUE(close(whole_of(out), at::mm(a, b)));
        EXPECT_EQ(DTensor(out).layout(), target);
        at::add_out(out, shard_of(a, source), shard_of(a, target), 3);
        EXPECT_TRUE(close(whole_of(out), a * 4));
        at::Tensor index = shard_of(a.sum({1}).to(at::kLong) * 0, Layout(mesh));
        at::max_out(column, index, shard_of(a, source), 1);
        EXPECT_TRUE(close(whole_of(column), std::get<0>(at::max(a, 1))));
        EXPECT_TRUE(close(whole_of(index), std::get<1>(at::max(a, 1))));
      }
  });
}

TEST(Out, OfAViewsCopy) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    at::Tensor out = shard_of(example({4, 5}) * 0, Layout(mesh)("a"));
    at::permute_copy_out(out, shard_of(example({5, 4}), Layout(mesh)("a")), {1, 0});
    EXPECT_TRUE(close(whole_of(out), example({5, 4}).t()));
  });
}

TEST(Out, EmptyOutTakesShapeAndWrongOnesAreErrors) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const at::Tensor a = shard_of(example({5, 4}), Layout(mesh)("a"));
    at::Tensor out = shard_of(at::empty({0}, at::kDouble), Layout(mesh));
    at::sum_out(out, a, at::IntArrayRef{1});
    EXPECT_TRUE(close(whole_of(out), example({5, 4}).sum({1})));
    at::Tensor wrong = shard_of(example({3}), Layout(mesh)), plain = at::empty({5, 4}, at::kDouble);
    EXPECT_THAT(message_of<LayoutError>([&] { at::sum_out(wrong, a, at::IntArrayRef{1}); }),
                HasSubstr("out has shape [3], the result [5]"));
    EXPECT_THAT(message_of<LayoutError>([&] { at::add_out(plain, a, a); }), HasSubstr("out is a plain tensor"));
    at::Tensor integers = shard_of(example({5, 4}).to(at::kLong), Layout(mesh));
    EXPECT_THAT(message_of<LayoutError>([&] { at::add_out(integers, a, a); }), HasSubstr("can't be cast"));
  });
}

TEST(InPlaceMoves, TargetKeepsItsLayout) {
  on_ranks(3, [](const DeviceMesh& mesh) {
    for (const Layout& layout : layouts_of(mesh)) {
      SCOPED_TRACE(layout.to_string());
      at::Tensor x = shard_of(example({5, 4}), layout);
      const at::Tensor view = x.view({5, 4});
      x.cumsum_(0);
      EXPECT_EQ(DTensor(x).layout(), layout);
      EXPECT_TRUE(close(whole_of(x), at::cumsum(example({5, 4}), 0)));
      EXPECT_TRUE(close(whole_of(view), at::cumsum(example({5, 4}), 0)));
      at::Tensor y = shard_of(example({5, 4}), layout);
      y.index_add_(0, shard_of(at::arange(3), Layout(mesh)("a")), shard_of(example({3, 4}), Layout(mesh)("a")));
      at::Tensor expected = example({5, 4});
      expected.narrow(0, 0, 3).add_(example({3, 4}));
      EXPECT_TRUE(close(whole_of(y), expected));
      EXPECT_EQ(DTensor(y).layout(), layout);
    }
  });
}

TEST(InPlaceMoves, RunningStatisticsAreUpdated) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const at::Tensor x = example({4, 3, 2});
    at::Tensor mean = example({3}) * 0, variance = example({3}) * 0 + 1;
    at::native_batch_norm(x, {}, {}, mean, variance, true, 0.1, 1e-5);
    for (const Layout& input : layouts_of(mesh))
      for (const Layout& statistics : {Layout(mesh), Layout(mesh)("a")}) {
        at::Tensor ours = shard_of(mean * 0, statistics), our_variance = shard_of(mean * 0 + 1, statistics);
        const at::Tensor y = std::get<0>(at::native_batch_norm(shard_of(x, input), {}, {}, ours, our_variance, true, 0.1, 1e-5));
        EXPECT_TRUE(close(whole_of(ours), mean)) << input.to_string() << statistics.to_string();
        EXPECT_TRUE(close(whole_of(our_variance), variance));
      }
  });
}

TEST(InPlaceViews, ChangeTheShape) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const at::Tensor a = example({5, 1, 4});
    at::Tensor x = shard_of(a, Layout(mesh)("a"));
    x.squeeze_(1);
    EXPECT_TRUE(close(whole_of(x), a.squeeze(1)));
    x.t_();
    EXPECT_EQ(DTensor(x).layout(), Layout(mesh)("", "a"));
    EXPECT_TRUE(close(whole_of(x), a.squeeze(1).t()));
    x.unsqueeze_(0);
    EXPECT_TRUE(close(whole_of(x), a.squeeze(1).t().unsqueeze(0)));
    at::Tensor leaf = shard_of(a, Layout(mesh)("a")).requires_grad_();
    at::Tensor y = leaf * 2;
    y.squeeze_(1);
    y.sum().backward();
    EXPECT_TRUE(close(whole_of(leaf.grad()), a * 0 + 2));
  });
}

TEST(InPlaceViews, OfARedistributedCopyIsAnError) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    at::Tensor x = shard_of(example({5, 4}), Layout(mesh)("a"));
    at::Tensor row = x.select(0, 1), column = x.select(1, 1);
    EXPECT_THAT(message_of<LayoutError>([&] { row.add_(1); }), HasSubstr("that had to be redistributed, so it is a copy"));
    EXPECT_THAT(message_of<LayoutError>([&] { row.exp_(); }), HasSubstr("redistribute the tensor before taking the view"));
    column.add_(1);
    at::Tensor expected = example({5, 4});
    expected.select(1, 1).add_(1);
    EXPECT_TRUE(close(whole_of(x), expected));
  });
}

TEST(Coalesced, OneCollectivePerKindForAList) {
  on_ranks(3, [](const DeviceMesh& mesh) {
    Tensors targets, sources, expected;
    const auto add = [&](const Shape& shape, const Layout& target, const Layout& source) {
      targets.push_back(shard_of(example(shape), target));
      sources.push_back(shard_of(example(shape) * 0.5, source));
      expected.push_back(example(shape) * 1.5);
    };
    for (int64_t size : {5, 4, 1, 7}) {
      add({size, 3}, Layout(mesh), Layout(mesh)("a"));               // all_gather
      add({size, 3}, Layout(mesh), Layout(mesh)("", "a"));           // all_gather, another dim
      add({size, 3}, Layout(mesh)("a"), Layout(mesh)("", "a"));      // all_to_all
      add({size, 3}, Layout(mesh)("a"), Layout(mesh, {partial()}));  // reduce_scatter
      add({size, 3}, Layout(mesh)("a"), Layout(mesh)("a"));          // nothing
      add({size, 3}, Layout(mesh)("a"), Layout(mesh));               // slice
    }
    const CommDebugMode comm;
    at::_foreach_add_(targets, sources);
    EXPECT_EQ(comm.count(), 3);
    for (size_t index = 0; index < targets.size(); ++index) EXPECT_TRUE(close(whole_of(targets[index]), expected[index])) << index;
    Tensors partials;
    for (int64_t size : {5, 4, 1}) partials.push_back(shard_of(example({size}), Layout(mesh, {partial()})));
    const CommDebugMode second;
    const auto squares = at::_foreach_mul(partials, partials);
    EXPECT_LE(second.count(), 2);  // the two lists
    EXPECT_TRUE(close(whole_of(squares[0]), example({5}) * example({5})));
    EXPECT_TRUE(close(whole_of(squares[2]), example({1}) * example({1})));
  });
}

}  // namespace
}  // namespace hyper_parallel
