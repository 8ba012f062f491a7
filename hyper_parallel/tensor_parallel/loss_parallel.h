// SPDX-License-Identifier: Apache-2.0
// A language model's head with its vocabulary spread over ranks.
//
//   {"lm_head", VocabParallelHead()}                               the loss from split logits: one small gather for each chunk of rows
//   {"lm_head", VocabParallelHead({.loss_parallel = false})}       logits are gathered, every rank computes the whole loss
//
// The module derives from Head and has a parameter "weight" [vocab, hidden], its own or the embedding's (RowwiseParallel then: the same
// rows). Hidden states arrive replicated, the loss and logits leave so.
#pragma once
#include "hyper_parallel/nn/head.h"
#include "hyper_parallel/tensor_parallel/styles.h"

namespace hyper_parallel {

struct VocabParallelOptions {
  bool loss_parallel = true;
  CrossEntropyOptions loss = {};  // of the parallel loss only (ConfigError else)
};

class VocabParallelHead : public ParallelStyle {
 public:
  explicit VocabParallelHead(VocabParallelOptions options = {}) : options_(std::move(options)) {}
  std::string describe() const override { return "VocabParallelHead"; }
  void apply(const StyleTarget& target) const override;

 private:
  VocabParallelOptions options_;
};

// The loss alone: hidden [..., in] replicated, weight this rank's rows of [vocab, in] by torch.chunk's rule, labels [...] replicated. The
// loss is replicated; hidden gets the whole gradient. See nn/head.h for the options.
LossSum vocab_parallel_cross_entropy(const ProcessGroup& group, const at::Tensor& hidden, const at::Tensor& weight,
                                     const at::Tensor& labels, int64_t vocab, const CrossEntropyOptions& options = {});

}  // namespace hyper_parallel
