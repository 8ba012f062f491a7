// SPDX-License-Identifier: Apache-2.0
// Cross entropy as a SUM over valid tokens, and their number. The caller divides by the valid tokens of the whole global batch, so the
// result depends neither on how the batch is cut nor on how many labels a rank has.
//
//   LossSum loss = linear_cross_entropy(hidden, head_weight, labels);
//   (loss.sum / total_tokens).backward();
//
// A label is the target of its own position (already shifted by one); kIgnoreLabel leaves the position out. All ignored: sum 0, zero
// gradients. DataError names a label outside [0, vocab).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace hyper_parallel {

inline constexpr int64_t kIgnoreLabel = -100;

struct LossSum {
  at::Tensor sum;     // 0-dim; f32 for half types
  int64_t count = 0;  // labels that are not ignored
  template <class F>
  void visit_tensors(F&& f) {
    f(sum);
  }
};

int64_t count_labels(const at::Tensor& labels);

// logits: [..., vocab]; labels: int64 [...]. Keeps the logits and one number a row; the gradient is made in backward.
LossSum cross_entropy(const at::Tensor& logits, const at::Tensor& labels);

// cross_entropy(linear(hidden, weight), labels) without ever holding all logits: chunks of rows give the loss and, at once, both gradients,
// which backward only scales. hidden: [..., in]; weight: [vocab, in].
LossSum linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels);

}  // namespace hyper_parallel
