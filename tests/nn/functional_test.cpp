// SPDX-License-Identifier: Apache-2.0
// Fused functions against ATen composites: values and every gradient, f64 at 1e-9 and f32 at 1e-5, odd sizes, all thread counts alike.
#include "hyper_parallel/nn/functional.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/nn/layers.h"
#include "hyper_parallel/nn/rotary.h"

namespace hyper_parallel {
namespace {

using Tensors = std::vector<at::Tensor>;

// Inputs are of size 1, so terms that cancel leave errors relative to 1, not to their sum.
void expect_close(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const double rtol = got.scalar_type() == at::kDouble ? 1e-9 : 1e-5;
  EXPECT_LE((got - want).abs().max().item<double>(), rtol * std::max(want.abs().max().item<double>(), 1.0)) << what;
  EXPECT_EQ(got.scalar_type(), want.scalar_type()) << what;
}

// Runs both on fresh leaves, with the same random output gradient.
template <class Ours, class Reference>
void compare(const Tensors& inputs, const Ours& ours, const Reference& reference, const std::string& what) {
  Tensors mine, theirs;
  for (const at::Tensor& t : inputs) {
    mine.push_back(t.clone().set_requires_grad(true));
    theirs.push_back(t.clone().set_requires_grad(true));
  }
  const at::Tensor got = ours(mine), want = reference(theirs);
  expect_close(got.detach(), want.detach(), what);
  const at::Tensor gradient = at::randn(want.sizes(), want.options());
  got.backward(gradient);
  want.backward(gradient);
  for (size_t i = 0; i < inputs.size(); ++i) expect_close(mine[i].grad(), theirs[i].grad(), what + ", gradient " + std::to_string(i));
}

at::Tensor reference_norm(const at::Tensor& x, const at::Tensor& w, double eps) { return x * at::rsqrt(x.pow(2).mean(-1, true) + eps) * w; }

at::Tensor rotate_half(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
}
// cosine, sine: [seq, half] or [batch, seq, half]
at::Tensor reference_rotary(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  return x * at::cat({cosine, cosine}, -1).unsqueeze(-2) + rotate_half(x) * at::cat({sine, sine}, -1).unsqueeze(-2);
}

at::Tensor reference_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t groups = q.size(2) / k.size(2), seq = q.size(1);
  const at::Tensor qt = q.transpose(1, 2), kt = k.repeat_interleave(groups, 2).transpose(1, 2),
                   vt = v.repeat_interleave(groups, 2).transpose(1, 2);
  const at::Tensor mask = at::ones({seq, seq}, at::kBool).triu(1);
  const at::Tensor scores = (at::matmul(qt, kt.transpose(2, 3)) / std::sqrt(double(q.size(3)))).masked_fill(mask, -1e30);
  return at::matmul(at::softmax(scores, -1), vt).transpose(1, 2).reshape({q.size(0), seq, -1});
}

class FusedTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(5); }
  at::Tensor random(at::IntArrayRef sizes) const { return at::randn(sizes, GetParam()); }
};

TEST_P(FusedTest, RmsNorm) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{1, 1}, {3, 7}, {2, 5, 64}, {70, 33}, {2, 3, 4, 130}}) {
    const auto norm = [](const Tensors& t) { return rms_norm(t[0], t[1], 1e-5); };
    compare(
        {random(sizes), random({sizes.back()})}, norm, [](const Tensors& t) { return reference_norm(t[0], t[1], 1e-5); }, "rms_norm");
  }
}

TEST_P(FusedTest, RmsNormOfAStridedInput) {
  compare(
      {random({6, 5, 4}), random({5})}, [](const Tensors& t) { return rms_norm(t[0].transpose(1, 2), t[1], 1e-6); },
      [](const Tensors& t) { return reference_norm(t[0].transpose(1, 2), t[1], 1e-6); }, "rms_norm of a transpose");
}

TEST_P(FusedTest, Swiglu) {
  for (const int64_t size : {1, 15, 16, 1000}) {
    compare(
        {random({2, size}) * 8, random({2, size})}, [](const Tensors& t) { return swiglu(t[0], t[1]); },
        [](const Tensors& t) { return at::silu(t[0]) * t[1]; }, "swiglu");
  }
}

TEST_P(FusedTest, SwigluAtTheEnds) {
  const at::Tensor gate = at::arange(-120, 121, at::TensorOptions(GetParam())), up = at::ones_like(gate);
  expect_close(swiglu(gate, up), at::silu(gate), "swiglu from -120 to 120");
}

TEST_P(FusedTest, Rotary) {
  for (const int64_t heads : {1, 3}) {
    for (const int64_t dim : {2, 6, 64}) {
      for (const bool per_batch : {false, true}) {
        const at::Tensor angle = per_batch ? random({2, 5, dim / 2}) : random({5, dim / 2}), c = angle.cos(), s = angle.sin();
        compare(
            {random({2, 5, heads, dim})}, [&](const Tensors& t) { return rotary(t[0], c, s); },
            [&](const Tensors& t) { return reference_rotary(t[0], c, s); }, "rotary");
      }
    }
  }
}

TEST_P(FusedTest, Attention) {
  for (const auto& [heads, kv_heads] : std::vector<std::pair<int64_t, int64_t>>{{4, 4}, {4, 2}, {6, 1}}) {
    for (const int64_t seq : {1, 7, 33}) {
      compare(
          {random({2, seq, heads, 16}), random({2, seq, kv_heads, 16}), random({2, seq, kv_heads, 16})},
          [](const Tensors& t) { return attention(t[0], t[1], t[2]); },
          [](const Tensors& t) { return reference_attention(t[0], t[1], t[2]); }, "attention");
    }
  }
}

TEST_P(FusedTest, CachedAttentionIsTheLastRowOfAttention) {
  const int64_t seq = 9, capacity = 12;
  const at::Tensor q = random({2, seq, 4, 8}), k = random({2, capacity, 2, 8}), v = random({2, capacity, 2, 8});
  const at::Tensor lengths = at::full({2}, seq, at::kLong);
  const at::Tensor got = cached_attention(q.narrow(1, seq - 1, 1), k, v, lengths);
  expect_close(got, reference_attention(q, k.narrow(1, 0, seq), v.narrow(1, 0, seq)).narrow(1, seq - 1, 1), "cached attention");
}

INSTANTIATE_TEST_SUITE_P(Types, FusedTest, testing::Values(at::kDouble, at::kFloat),
                         [](const auto& info) { return info.param == at::kDouble ? "f64" : "f32"; });

TEST(FunctionalTest, HalfTypesRoundOnce) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({4, 32}).to(at::kBFloat16), w = at::randn({32}).to(at::kBFloat16);
  EXPECT_TRUE(rms_norm(x, w, 1e-6).equal(rms_norm(x.to(at::kFloat), w.to(at::kFloat), 1e-6).to(at::kBFloat16)));
  EXPECT_TRUE(swiglu(x, x).equal(swiglu(x.to(at::kFloat), x.to(at::kFloat)).to(at::kBFloat16)));
}

TEST(FunctionalTest, ThreadsChangeNothingButRounding) {
  at::manual_seed(1);
  const int threads = at::get_num_threads();
  const at::Tensor x = at::randn({500, 96}), w = at::randn({96}), dy = at::randn({500, 96});
  Tensors dx, dw;
  for (const int n : {1, 2}) {
    at::set_num_threads(n);
    at::Tensor a = x.clone().set_requires_grad(true), b = w.clone().set_requires_grad(true);
    rms_norm(a, b, 1e-6).backward(dy);
    dx.push_back(a.grad());
    dw.push_back(b.grad());
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(dx[0].equal(dx[1]));
  expect_close(dw[0], dw[1], "norm weight over threads");
}

TEST(FunctionalTest, NoGraphWithoutGradients) {
  const at::Tensor x = at::ones({2, 4}), w = at::ones({4}).set_requires_grad(true);
  at::NoGradGuard no_grad;
  EXPECT_FALSE(rms_norm(x, w, 1e-6).requires_grad());
}

TEST(FunctionalTest, WrongShapesAreNamed) {
  EXPECT_THROW(rms_norm(at::ones({2, 4}), at::ones({3}), 1e-6), InternalError);
  EXPECT_THROW(rotary(at::ones({1, 3, 1, 4}), at::ones({2, 2}), at::ones({2, 2})), InternalError);
  EXPECT_THROW(swiglu(at::ones({2}), at::ones({3})), InternalError);
  Embedding table(Module::root(), {.num = 3, .dim = 2});
  materialize(table, {});
  EXPECT_THROW(table(at::full({1}, 3, at::kLong)), DataError);
}

TEST(RotaryTableTest, FrequenciesByTheirFormula) {
  RotaryTable table({.dim = 8, .theta = 500.0});
  auto [cosine, sine] = table.rows(5, at::kDouble);
  EXPECT_EQ(cosine.sizes(), (std::vector<int64_t>{5, 4}));
  for (int64_t p = 0; p < 5; ++p)
    for (int64_t j = 0; j < 4; ++j) {
      const double angle = double(p) / std::pow(500.0, 2.0 * double(j) / 8);
      EXPECT_NEAR(cosine[p][j].item<double>(), std::cos(angle), 2e-6);
      EXPECT_NEAR(sine[p][j].item<double>(), std::sin(angle), 2e-6);
    }
  const at::Tensor before = cosine.clone();
  EXPECT_TRUE(table.rows(900, at::kDouble).first.narrow(0, 0, 5).equal(before)) << "growing changes no earlier row";
}

TEST(RotaryTableTest, Llama3ScalesLongWavesOnly) {
  const RotaryOptions plain{.dim = 64, .theta = 500000};
  RotaryOptions scaled = plain;
  scaled.scaling = RotaryOptions::Scaling::kLlama3;
  scaled.factor = 8, scaled.low_frequency_factor = 1, scaled.high_frequency_factor = 4, scaled.original_positions = 1024;
  const at::Tensor ratio = RotaryTable(scaled).frequencies().div(RotaryTable(plain).frequencies());
  EXPECT_NEAR(ratio[0].item<double>(), 1, 1e-6);
  EXPECT_NEAR(ratio[31].item<double>(), 1.0 / 8, 1e-6);
  for (int64_t j = 1; j < 32; ++j) EXPECT_LE(ratio[j].item<double>(), ratio[j - 1].item<double>() + 1e-6);
}

}  // namespace
}  // namespace hyper_parallel
