// SPDX-License-Identifier: Apache-2.0
// The loss over a split vocabulary against torch's cross_entropy on one rank (z_loss by its formula): value and every gradient.
#include "hyper_parallel/tensor_parallel/loss_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"

namespace hyper_parallel {
namespace {

using testing::HasSubstr;

struct Case {
  int num_ranks;
  int64_t vocab, rows;
  double label_smoothing = 0, z_loss = 0;
  bool weights = false;
  int64_t ignore_index = kIgnoreLabel;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.num_ranks << " ranks, vocab " << c.vocab << ", rows " << c.rows; }

at::Tensor values(at::IntArrayRef sizes, double phase) {
  int64_t numel = 1;
  for (int64_t size : sizes) numel *= size;
  return at::arange(numel, at::kDouble).mul(0.7).add(phase).sin().mul(2).view(sizes);
}

class LossParallel : public testing::TestWithParam<Case> {};

TEST_P(LossParallel, EqualsOneRank) {
  const Case& c = GetParam();
  constexpr int64_t kHidden = 6;
  at::Tensor labels = at::arange(c.rows, at::kLong).mul(3).remainder(c.vocab);
  if (c.rows > 2) labels[1] = c.ignore_index;
  const at::Tensor class_weights = c.weights ? values({c.vocab}, 0.3).add(2.5) : at::Tensor();
  const at::Tensor hidden = values({c.rows, kHidden}, 0.1).requires_grad_(), weight = values({c.vocab, kHidden}, 0.9).requires_grad_();
  const at::Tensor logits = at::linear(hidden, weight);
  at::Tensor want = at::cross_entropy_loss(logits, labels, class_weights, at::Reduction::Sum, c.ignore_index, c.label_smoothing);
  if (c.z_loss > 0) want = want + c.z_loss * at::logsumexp(logits, -1).square().mul(labels.ne(c.ignore_index)).sum();
  (want * 0.25).backward();
  run_threads(c.num_ranks, [&](World& world) {
    const Interval mine = chunk_of(c.vocab, c.num_ranks, world.rank());
    const at::Tensor local_hidden = hidden.detach().clone().requires_grad_();
    const at::Tensor local_weight = weight.detach().narrow(0, mine.begin, mine.size()).clone().requires_grad_();
    const CrossEntropyOptions options{c.label_smoothing, c.z_loss, class_weights, c.ignore_index};
    const LossSum loss = vocab_parallel_cross_entropy(world.group(), local_hidden, local_weight, labels, c.vocab, options);
    EXPECT_EQ(loss.count, labels.ne(c.ignore_index).sum().item<int64_t>());
    EXPECT_NEAR(loss.sum.item<double>(), want.item<double>(), 1e-9 * std::abs(want.item<double>()) + 1e-12);
    (loss.sum * 0.25).backward();
    EXPECT_TRUE(at::allclose(local_hidden.grad(), hidden.grad(), 1e-9, 1e-12));
    EXPECT_TRUE(at::allclose(local_weight.grad(), weight.grad().narrow(0, mine.begin, mine.size()), 1e-9, 1e-12));
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, LossParallel,
                         testing::Values(Case{1, 9, 5}, Case{2, 9, 5}, Case{3, 9, 5}, Case{4, 257, 70}, Case{8, 5, 7}, Case{2, 9, 0},
                                         Case{2, 9, 5, 0.1}, Case{3, 9, 5, 0.1, 0, true}, Case{3, 9, 5, 0, 1e-2},
                                         Case{2, 9, 6, 0.2, 1e-3, true}, Case{3, 9, 5, 0, 0, true}, Case{3, 9, 5, 0.1, 1e-3, false, 4},
                                         Case{8, 5, 7, 0.1, 1e-3, true, 2}));

TEST(LossParallel, NoValidLabelGivesZero) {
  run_threads(2, [](World& world) {
    const at::Tensor hidden = values({3, 4}, 0).requires_grad_(), weight = values({3, 4}, 1).requires_grad_();
    const LossSum loss = vocab_parallel_cross_entropy(world.group(), hidden, weight, at::arange(3, at::kLong).fill_(kIgnoreLabel), 6,
                                                      {.label_smoothing = 0.1, .z_loss = 0.1});
    loss.sum.backward();
    EXPECT_EQ(loss.count, 0);
    EXPECT_EQ(loss.sum.item<double>(), 0);
    EXPECT_EQ(hidden.grad().abs().max().item<double>(), 0);
    EXPECT_EQ(weight.grad().abs().max().item<double>(), 0);
  });
}

// One rank's columns are minus infinity in every row: masked, as on one rank. A NaN on one rank is a NaN on all.
TEST(LossParallel, InfinitiesAndNaNsAreThoseOfOneRank) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double special : {-infinity, std::nan("")}) {
    const at::Tensor labels = at::arange(3, at::kLong), hidden = at::ones({3, 1}, at::kDouble), weight = values({6, 1}, 0.9);
    for (int64_t row = 3; row < 6; ++row)
      if (special == -infinity || row == 4) weight[row] = special;
    const double want = at::cross_entropy_loss(at::linear(hidden, weight), labels, {}, at::Reduction::Sum).item<double>();
    run_threads(2, [&](World& world) {
      const LossSum loss =
          vocab_parallel_cross_entropy(world.group(), hidden, weight.narrow(0, 3 * world.rank(), 3).contiguous(), labels, 6, {});
      if (std::isnan(want))
        EXPECT_TRUE(std::isnan(loss.sum.item<double>()));
      else
        EXPECT_NEAR(loss.sum.item<double>(), want, 1e-9);
    });
  }
}

TEST(LossParallel, BadInputIsNamed) {
  run_threads(1, [](World& world) {
    const at::Tensor hidden = values({2, 4}, 0), weight = values({5, 4}, 1), labels = at::arange(2, at::kLong);
    const auto message = [&](const at::Tensor& targets, int64_t vocab, CrossEntropyOptions options) -> std::string {
      try {
        vocab_parallel_cross_entropy(world.group(), hidden, weight, targets, vocab, options);
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_THAT(message(labels, 6, {}), HasSubstr("weight [5, 4] (this rank's rows: 6 of 6)"));
    EXPECT_THAT(message(labels.add(4), 5, {}), HasSubstr("labels: element 1 is 5 (allowed: 0 to 4, or -100 to ignore)"));
    EXPECT_THAT(message(labels, 5, {.label_smoothing = 1}), HasSubstr("label_smoothing: 1 (allowed: 0 to below 1)"));
    EXPECT_THAT(message(labels, 5, {.z_loss = -1}), HasSubstr("z_loss: -1 (allowed: 0 and more)"));
    EXPECT_THAT(message(labels, 5, {.class_weights = values({4}, 0)}), HasSubstr("class_weights: [4] (allowed: [5])"));
  });
}

}  // namespace
}  // namespace hyper_parallel
