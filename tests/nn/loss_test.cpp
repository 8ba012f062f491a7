// SPDX-License-Identifier: Apache-2.0
// Loss sums against at::cross_entropy_loss in f64 (its f32 gradient is off by 2e-5 at large vocabularies), with ignored labels, several
// chunks, and nothing to learn from.
#include "hyper_parallel/nn/loss.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

struct Problem {
  at::Tensor hidden, weight, labels;
  Problem(int64_t rows, int64_t dim, int64_t vocab, at::ScalarType dtype, double ignored) {
    at::manual_seed(rows + vocab);
    hidden = at::randn({rows, dim}, dtype).mul(0.3);
    weight = at::randn({vocab, dim}, dtype);
    labels = at::randint(vocab, {rows}, at::kLong).masked_fill(at::rand({rows}).lt(ignored), kIgnoreLabel);
  }
};

at::Tensor reference(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, kIgnoreLabel);
}

void expect_close(const at::Tensor& got, const at::Tensor& want, const char* what) {
  const double rtol = got.scalar_type() == at::kDouble ? 1e-9 : 1e-5;
  EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(), rtol * std::max(want.abs().max().item<double>(), 1e-30)) << what;
}

at::Tensor leaf(const at::Tensor& t) { return t.clone().set_requires_grad(true); }
at::Tensor exact_leaf(const at::Tensor& t) { return t.to(at::kDouble).clone().set_requires_grad(true); }

class LossTest : public testing::TestWithParam<std::tuple<at::ScalarType, int64_t, int64_t, double>> {};

TEST_P(LossTest, EqualsAtCrossEntropy) {
  const auto [dtype, rows, vocab, ignored] = GetParam();
  const Problem p(rows, 24, vocab, dtype, ignored);
  at::Tensor h = leaf(p.hidden), w = leaf(p.weight), rh = exact_leaf(p.hidden), rw = exact_leaf(p.weight);
  const at::Tensor want = reference(at::linear(rh, rw), p.labels);
  const LossSum fused = linear_cross_entropy(h, w, p.labels);
  EXPECT_EQ(fused.count, p.labels.ne(kIgnoreLabel).sum().item<int64_t>());
  EXPECT_EQ(fused.count, count_labels(p.labels));
  expect_close(fused.sum.detach(), want.detach(), "fused loss");
  (want / 7).backward();
  fused.sum.div(7).backward();
  expect_close(h.grad(), rh.grad(), "hidden");
  expect_close(w.grad(), rw.grad(), "weight");

  at::Tensor logits = leaf(at::linear(p.hidden, p.weight)), rlogits = exact_leaf(logits.detach());
  const LossSum plain = cross_entropy(logits, p.labels);
  expect_close(plain.sum.detach(), want.detach(), "loss of logits");
  plain.sum.backward();
  reference(rlogits, p.labels).backward();
  expect_close(logits.grad(), rlogits.grad(), "logits");
}

// Vocab 65536 makes chunks of 128 rows: 300 rows are three chunks, the last one short.
INSTANTIATE_TEST_SUITE_P(Cases, LossTest,
                         testing::Values(std::tuple{at::kDouble, 1, 2, 0.0}, std::tuple{at::kDouble, 37, 257, 0.3},
                                         std::tuple{at::kFloat, 37, 257, 0.3}, std::tuple{at::kFloat, 300, 65536, 0.1},
                                         std::tuple{at::kDouble, 9, 31, 1.0}, std::tuple{at::kFloat, 9, 31, 1.0}));

TEST(LossEdgeTest, AllIgnoredGivesZeroEverywhere) {
  const Problem p(5, 8, 11, at::kFloat, 2.0);
  at::Tensor h = leaf(p.hidden), w = leaf(p.weight);
  const LossSum loss = linear_cross_entropy(h, w, p.labels);
  loss.sum.backward();
  EXPECT_EQ(loss.count, 0);
  EXPECT_EQ(loss.sum.item<double>(), 0);
  EXPECT_TRUE(h.grad().eq(0).all().item<bool>());
  EXPECT_TRUE(w.grad().eq(0).all().item<bool>());
}

TEST(LossEdgeTest, HugeLogitsStayFinite) {
  const at::Tensor logits = at::full({1, 3}, 1e4).index_fill_(1, at::ones({1}, at::kLong), -1e4), labels = at::zeros({1}, at::kLong);
  EXPECT_NEAR(cross_entropy(logits, labels).sum.item<double>(), std::log(2.0), 1e-6);
}

TEST(LossEdgeTest, NoRows) {
  at::Tensor h = leaf(at::ones({0, 4})), w = leaf(at::ones({6, 4}));
  linear_cross_entropy(h, w, at::ones({0}, at::kLong)).sum.backward();
  EXPECT_TRUE(w.grad().eq(0).all().item<bool>());
}

TEST(LossEdgeTest, FrozenSidesAndRetainedGraphs) {
  const Problem p(6, 8, 11, at::kDouble, 0.0);
  at::Tensor h = leaf(p.hidden), w = leaf(p.weight);
  linear_cross_entropy(h, p.weight, p.labels).sum.backward();
  linear_cross_entropy(p.hidden, w, p.labels).sum.backward();
  at::Tensor h2 = leaf(p.hidden), w2 = leaf(p.weight);
  const at::Tensor loss = linear_cross_entropy(h2, w2, p.labels).sum;
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_TRUE(h.grad().equal(h2.grad()) && w.grad().equal(w2.grad()));
  loss.backward();
  EXPECT_TRUE(h2.grad().allclose(h.grad() * 2, 1e-12));
  EXPECT_FALSE(linear_cross_entropy(p.hidden, p.weight, p.labels).sum.requires_grad());
}

TEST(LossEdgeTest, HalfTypesSumInSingle) {
  const Problem p(40, 16, 50, at::kBFloat16, 0.2);
  at::Tensor h = leaf(p.hidden), w = leaf(p.weight);
  const LossSum loss = linear_cross_entropy(h, w, p.labels);
  EXPECT_EQ(loss.sum.scalar_type(), at::kFloat);
  const double want = reference(at::linear(p.hidden, p.weight).to(at::kFloat), p.labels).item<double>();
  EXPECT_NEAR(loss.sum.item<double>(), want, 1e-4 * want);
  loss.sum.backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kBFloat16);
}

TEST(LossEdgeTest, LabelOutsideTheVocabularyIsNamed) {
  const Problem p(3, 4, 5, at::kFloat, 0.0);
  p.labels[1] = 5;
  try {
    linear_cross_entropy(p.hidden, p.weight, p.labels);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "labels: element 1 is 5 (allowed: 0 to 4, or -100 to ignore)");
  }
}

}  // namespace
}  // namespace hyper_parallel
