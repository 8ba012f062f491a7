// SPDX-License-Identifier: Apache-2.0
// In-place ops, foreach and fused optimizers, random ops, errors.
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/renorm.h>
#include <ATen/ops/std.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/dtensor/random.h"
#include "hyper_parallel/shard/op_registry.h"
#include "tests/shard/support/compare.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
using testing::HasSubstr;

at::Tensor example(const Shape& shape, double step = 1) {
  int64_t numel = 1;
  for (int64_t size : shape) numel *= size;
  return at::arange(numel, at::kDouble).view(shape) * step + 1;
}

std::vector<Layout> some_layouts(const DeviceMesh& mesh) {
  return {Layout(mesh),
          Layout(mesh)("a"),
          Layout(mesh)("", "a"),
          Layout(mesh, {strided_shard(0, 2)}),
          Layout(mesh, {ragged_shard({7, 13})}),
          Layout(mesh, {partial()})};
}

template <class Body>
void on_two_ranks(const Body& body) {
  run_threads(
      2, [&](World& world) { body(DeviceMesh(world.group(), {2}, {"a"})); }, kQuick);
}

TEST(InPlace, KeepsThePlacementOfItsTarget) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const at::Tensor whole = example({5, 4}), other = example({5, 4}, 0.5);
    for (const Layout& target : some_layouts(mesh))
      for (const Layout& source : some_layouts(mesh)) {
        SCOPED_TRACE(target.to_string() + " += " + source.to_string());
        at::Tensor x = shard_of(whole, target);
        const at::Tensor y = shard_of(other, source);
        const auto version = x._version();
        x.add_(y, 2);
        EXPECT_EQ(x._version(), version + 1);
        EXPECT_EQ(DTensor(x).layout(), target);
        EXPECT_TRUE(close(whole_of(x), whole + other * 2));
        x.mul_(3).div_(2);
        EXPECT_TRUE(close(whole_of(x), (whole + other * 2) * 1.5));
        x.copy_(y);
        EXPECT_TRUE(close(whole_of(x), other));
        x.zero_();
        EXPECT_TRUE(close(whole_of(x), other * 0));
        EXPECT_TRUE(close(whole_of(x.fill_(2)), other * 0 + 2));
      }
  });
}

TEST(InPlace, ViewsShareMemoryAndVersion) {
  on_two_ranks([](const DeviceMesh& mesh) {
    at::Tensor x = shard_of(example({4, 6}), Layout(mesh)("a"));
    at::Tensor flat = x.view({24});
    EXPECT_TRUE(DTensor(flat).to_local().is_alias_of(DTensor(x).to_local()));
    flat.mul_(2);
    EXPECT_EQ(x._version(), flat._version());
    EXPECT_TRUE(close(whole_of(x), example({4, 6}) * 2));
    EXPECT_TRUE(DTensor(x.detach()).to_local().is_alias_of(DTensor(x).to_local()));
    at::Tensor leaf = shard_of(example({4, 6}), Layout(mesh)("a")).requires_grad_();
    (leaf * 2).view({24}).mul_(3).sum().backward();
    EXPECT_TRUE(close(whole_of(leaf.grad()), example({4, 6}) * 0 + 6));
  });
}

TEST(Autograd, GradientsAccumulateAcrossPlacements) {
  on_two_ranks([](const DeviceMesh& mesh) {
    at::Tensor weight = shard_of(example({4, 3}), Layout(mesh)).requires_grad_();
    const at::Tensor rows = shard_of(example({6, 4}), Layout(mesh)("a")), all = shard_of(example({6, 4}), Layout(mesh));
    (at::mm(rows, weight).sum() + at::mm(all, weight).sum()).backward();
    at::mm(rows, weight).sum().backward();
    const at::Tensor one = example({6, 4}).sum({0}).unsqueeze(1).expand({4, 3});
    EXPECT_TRUE(close(whole_of(weight.grad()), one * 3));
  });
}

TEST(Foreach, EachTensorHasItsOwnPlacement) {
  on_two_ranks([](const DeviceMesh& mesh) {
    Tensors whole, sharded, squares;
    for (const Layout& layout : some_layouts(mesh)) {
      whole.push_back(example({5, 4}, double(whole.size()) + 1));
      sharded.push_back(shard_of(whole.back(), layout));
    }
    const auto norms = at::_foreach_norm(sharded);
    for (size_t index = 0; index < whole.size(); ++index) EXPECT_TRUE(close(whole_of(norms[index]), at::linalg_vector_norm(whole[index])));
    const auto doubled = at::_foreach_mul(sharded, at::Scalar(2));
    at::_foreach_add_(sharded, doubled, 0.5);
    for (size_t index = 0; index < whole.size(); ++index) {
      EXPECT_TRUE(close(whole_of(doubled[index]), whole[index] * 2));
      EXPECT_TRUE(close(whole_of(sharded[index]), whole[index] * 2));
    }
  });
}

TEST(Foreach, FusedAdamWOnShards) {
  on_two_ranks([](const DeviceMesh& mesh) {
    for (const Layout& layout : {Layout(mesh), Layout(mesh)("a"), Layout(mesh, {ragged_shard({7, 13})})}) {
      const auto step = [&](const std::function<at::Tensor(const at::Tensor&)>& make) {
        Tensors parameter{make(example({5, 4}))}, gradient{make(example({5, 4}, 0.1))}, average{make(example({5, 4}) * 0)},
            square{make(example({5, 4}) * 0)}, none, steps{at::ones_like(at::arange(1, at::kFloat)).squeeze()};
        at::_fused_adamw_(parameter, gradient, average, square, none, steps, 0.1, 0.9, 0.95, 0.1, 1e-8, false, false);
        return parameter[0];
      };
      EXPECT_TRUE(close(whole_of(step([&](const at::Tensor& whole) { return shard_of(whole, layout); })),
                        step([](const at::Tensor& whole) { return whole.clone(); })));
    }
  });
}

TEST(Ragged, ElementwiseOpsAndNormsStayRagged) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const Layout flat(mesh, {ragged_shard({7, 13})});
    const at::Tensor x = shard_of(example({5, 4}), flat), y = shard_of(example({5, 4}, 2), Layout(mesh));
    const at::Tensor z = x * y + x;
    EXPECT_EQ(DTensor(z).layout(), flat);
    EXPECT_TRUE(close(whole_of(z), example({5, 4}) * example({5, 4}, 2) + example({5, 4})));
    EXPECT_TRUE(DTensor(z.sum()).is_partial());
    EXPECT_TRUE(close(whole_of(z.sum()), whole_of(z).sum()));
    EXPECT_TRUE(close(whole_of(at::linalg_vector_norm(x)), at::linalg_vector_norm(example({5, 4}))));
  });
}

TEST(Like, NewTensorsLieLikeTheirModel) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const at::Tensor x = shard_of(example({5, 4}), Layout(mesh)("a")), p = shard_of(example({5, 4}), Layout(mesh, {partial()}));
    EXPECT_EQ(DTensor(at::zeros_like(x)).layout(), Layout(mesh)("a"));
    EXPECT_EQ(DTensor(at::ones_like(p)).layout(), Layout(mesh));
    EXPECT_TRUE(close(whole_of(at::ones_like(p)), example({5, 4}) * 0 + 1));
    EXPECT_EQ(DTensor(x.new_zeros({5, 4})).layout(), Layout(mesh)("a"));
    EXPECT_EQ(DTensor(x.new_zeros({3})).layout(), Layout(mesh));
    EXPECT_EQ(at::empty_like(x).sizes(), x.sizes());
    EXPECT_EQ(x.sum().item<double>(), 210);
  });
}

TEST(Random, ValuesDoNotDependOnTheLayout) {
  on_two_ranks([](const DeviceMesh& mesh) {
    at::Tensor first;
    for (const Layout& layout : {Layout(mesh), Layout(mesh)("a"), Layout(mesh)("", "a")}) {
      manual_seed(5);
      at::Tensor x = shard_of(example({5, 4}), layout);
      x.normal_(1, 2);
      const at::Tensor values = whole_of(x) + whole_of(at::rand_like(x)) + whole_of(at::dropout(at::ones_like(x), 0.5, true));
      if (!first.defined()) first = values;
      EXPECT_TRUE(values.equal(first));
    }
    EXPECT_GT(first.std().item<double>(), 0.5);
  });
}

TEST(Errors, OpsWithoutARuleAndBadArgumentsAreNamed) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const at::Tensor x = shard_of(example({5, 4}), Layout(mesh)("a"));
    EXPECT_THAT(message_of<LayoutError>([&] { at::renorm(x, 2, 0, 3); }),
                testing::AllOf(HasSubstr("aten::renorm: this op has no sharding rule; add a row to a file of hyper_parallel/shard/ops"),
                               HasSubstr("self: Double [5, 4] on DeviceMesh(a=2) [S(0)]")));
    EXPECT_THAT(message_of<LayoutError>([&] {
                  x + example({5, 4});
                }),
                testing::AllOf(HasSubstr("a plain tensor with dims among DTensors"), HasSubstr("other: plain Double [5, 4]")));
    at::Tensor p = shard_of(example({5, 4}), Layout(mesh, {partial()}));
    const at::Tensor view = p.view({20});
    EXPECT_THAT(message_of<LayoutError>([&] { p.fill_(1); }),
                testing::AllOf(HasSubstr("aten::fill_.Scalar: in place on"), HasSubstr("shares memory with other tensors")));
    EXPECT_THAT(message_of<LayoutError>([&] { p.normal_(); }), HasSubstr("random values can't fill a Partial tensor"));
  });
}

TEST(Rows, ErrorsNameFileAndLine) {
  const auto parse = [](const char* text) {
    return message_of<LayoutError>([&] {
      std::map<std::string, OpRow> rows;
      parse_op_rows(text, "ops/x.yaml", rows);
    });
  };
  EXPECT_THAT(parse("aten::a: { rule: pointwise }\naten::b: { rule: pointwis }"),
              testing::AllOf(HasSubstr("no rule function `pointwis`"), HasSubstr("in ops/x.yaml:2")));
  EXPECT_THAT(parse("aten::a: { linear: \"0\" }"), HasSubstr("needs the key `rule`"));
  EXPECT_THAT(parse("aten::a:\n  rule: pointwise\n  colour: red"),
              testing::AllOf(HasSubstr("unknown key `colour` (allowed: rule, each, linear"), HasSubstr("ops/x.yaml:3")));
  EXPECT_THAT(parse("aten::a: { rule: \"m kk -> m\" }"), HasSubstr("`kk` in"));
  EXPECT_THAT(parse("aten::a: { rule: \"m k -> n\" }"), HasSubstr("output factor `n` is in no input"));
  EXPECT_THAT(parse("aten::a: { rule: pointwise, linear: \"0 - 1\" }"), HasSubstr("expected like \"0 + 1 * 2\""));
  EXPECT_THAT(parse("aten::a: { rule: pointwise, reduce: mode }"), HasSubstr("allowed: sum, avg, min, max, prod"));
  EXPECT_THAT(parse("aten::a: { rule: pointwise }\naten::a: { rule: pointwise }"), HasSubstr("two rows"));
  EXPECT_THAT(parse("a: [b"), HasSubstr("ops/x.yaml:"));
  EXPECT_GT(registered_ops().size(), 200u);
}

}  // namespace
}  // namespace hyper_parallel
