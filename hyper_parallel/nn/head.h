// SPDX-License-Identifier: Apache-2.0
// The head of a language model as a replaceable method: what makes logits and the loss of hidden states and a weight [vocab, hidden]. The
// default works on the whole weight; with the vocabulary spread over ranks no rank ever holds whole rows of logits.
//
//   struct MyHead : ModuleOf<MyHead>, Head { ... forward(...) { return method().loss(hidden, weight, labels); } };
//   head.set_method(std::make_shared<MyMethod>());     // tensor_parallel/loss_parallel.h has one
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "hyper_parallel/nn/loss.h"

namespace hyper_parallel {

class HeadMethod {
 public:
  virtual ~HeadMethod() = default;
  virtual at::Tensor logits(const at::Tensor& hidden, const at::Tensor& weight) const;                       // [..., vocab]
  virtual LossSum loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) const;  // linear_cross_entropy
};

// A module that is a head derives from it.
class Head {
 public:
  void set_method(std::shared_ptr<const HeadMethod> method) { method_ = std::move(method); }
  const HeadMethod& method() const { return *method_; }

 protected:
  ~Head() = default;

 private:
  std::shared_ptr<const HeadMethod> method_ = std::make_shared<HeadMethod>();
};

// Of position i with label y over classes c, with p the softmax and w the class weights:
//   (1 - label_smoothing) w_y (-log p_y) + label_smoothing / vocab * sum_c w_c (-log p_c) + z_loss * logsumexp^2
// as torch's cross_entropy(reduction="sum") has the first two; z_loss is PaLM's.
struct CrossEntropyOptions {
  double label_smoothing = 0;     // [0, 1)
  double z_loss = 0;              // >= 0
  at::Tensor class_weights = {};  // [vocab], whole on every rank; undefined: ones
  int64_t ignore_index = kIgnoreLabel;
};

// Where this rank's columns of the logits lie, and how ranks tell each other about theirs.
class VocabShard {
 public:
  virtual ~VocabShard() = default;
  int64_t begin = 0;         // first class of this rank
  int64_t vocab = 0;         // of all ranks
  int64_t largest_size = 0;  // classes of the rank that has most: chunks are alike on all ranks
  int64_t num_shards = 1;
  // Collective: `mine` of every rank, [num_shards, mine...], in rank order.
  virtual at::Tensor gather(const at::Tensor& mine) const = 0;
};

// linear_cross_entropy with weight [classes of this rank, in], which may be none. The loss is the same on every rank; the gradient of
// hidden is this rank's term of the sum over ranks. One small gather a chunk of rows is all that is sent. ConfigError for options out of
// range.
LossSum sharded_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, const VocabShard& shard,
                                     const CrossEntropyOptions& options = {});

}  // namespace hyper_parallel
