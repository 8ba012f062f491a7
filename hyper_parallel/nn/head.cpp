// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/nn/head.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <cmath>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/nn/detail/dispatch.h"
#include "hyper_parallel/nn/detail/kernels.h"
#include "hyper_parallel/nn/detail/linear_loss.h"

namespace hyper_parallel {
namespace {

// The loss of rows from the statistics of all shards, and how to make the gradient of this one's columns.
class ShardedRows {
 public:
  ShardedRows(const at::Tensor& labels, const VocabShard& shard, const CrossEntropyOptions& options)
      : labels_(labels), shard_(shard), options_(options) {
    if (!options.class_weights.defined()) return;
    weights_ = options.class_weights.detach().to(at::kDouble).contiguous();
    total_weight_ = 0;
    for (int64_t c = 0; c < shard.vocab; ++c) total_weight_ += weights_.const_data_ptr<double>()[c];
  }

  double run(at::Tensor& logits, int64_t begin, bool gradient) const {
    const int64_t rows = logits.size(0);
    const std::vector<int64_t> mine = own_labels(begin, rows);
    at::Tensor exps = logits;
    at::Tensor weights = column_weights(logits);
    at::Tensor stats = at::empty({4, rows}, at::kDouble);
    detail::by_dtype(logits.scalar_type(), "cross_entropy", [&]<class T>(T) {
      kernels::softmax_shard(exps.mutable_data_ptr<T>(), mine.data(), weights.defined() ? weights.const_data_ptr<T>() : nullptr,
                             stats.mutable_data_ptr<double>(), rows, logits.size(1), options_.ignore_index);
    });
    std::vector<double> scale(static_cast<size_t>(rows)), target(static_cast<size_t>(rows));
    const double loss = combine(shard_.gather(stats), stats, begin, scale, target);
    if (!gradient) return loss;
    detail::by_dtype(logits.scalar_type(), "cross_entropy", [&]<class T>(T) {
      kernels::softmax_shard_gradient(exps.mutable_data_ptr<T>(), mine.data(), weights.defined() ? weights.const_data_ptr<T>() : nullptr,
                                      scale.data(), target.data(), smoothing(), rows, logits.size(1));
    });
    return loss;
  }

 private:
  double smoothing() const { return options_.label_smoothing / static_cast<double>(shard_.vocab); }
  double weight_of(int64_t label) const { return weights_.defined() ? weights_.const_data_ptr<double>()[label] : 1; }

  std::vector<int64_t> own_labels(int64_t begin, int64_t rows) const {
    std::vector<int64_t> mine(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t label = labels_.const_data_ptr<int64_t>()[begin + i];
      mine[static_cast<size_t>(i)] = label == options_.ignore_index ? label : outside_of_ignore(label - shard_.begin);
    }
    return mine;
  }
  // A class of another rank must not look like the one to ignore.
  int64_t outside_of_ignore(int64_t column) const { return column == options_.ignore_index ? -(int64_t{1} << 62) : column; }

  // What smoothing spreads over this rank's columns; undefined if there is nothing to spread.
  at::Tensor column_weights(const at::Tensor& logits) const {
    if (options_.label_smoothing == 0) return {};
    if (!weights_.defined()) return at::empty({logits.size(1)}, logits.options()).fill_(1);
    return weights_.narrow(0, shard_.begin, logits.size(1)).to(logits.scalar_type());
  }

  double combine(const at::Tensor& all, const at::Tensor& own, int64_t begin, std::vector<double>& scale,
                 std::vector<double>& target) const {
    const int64_t rows = own.size(1);
    const double *stats = all.const_data_ptr<double>(), *mine = own.const_data_ptr<double>(), epsilon = options_.label_smoothing;
    double loss = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t label = labels_.const_data_ptr<int64_t>()[begin + i];
      if (label == options_.ignore_index) continue;
      const auto at = [&](int64_t shard, int64_t kind) { return stats[(shard * 4 + kind) * rows + i]; };
      double top = -HUGE_VAL, sum = 0, logit = 0, weighted = 0;
      for (int64_t r = 0; r < shard_.num_shards; ++r) top = std::max(top, at(r, 0));
      for (int64_t r = 0; r < shard_.num_shards; ++r) {
        if (at(r, 1) != 0) sum += at(r, 1) * std::exp(at(r, 0) - top);
        logit += at(r, 2);
        weighted += at(r, 3);
      }
      const double log_sum = std::log(sum) + top, weight = weight_of(label);
      loss += (1 - epsilon) * weight * (log_sum - logit) + options_.z_loss * log_sum * log_sum;
      double coefficient = (1 - epsilon) * weight + 2 * options_.z_loss * log_sum;
      if (epsilon > 0) {
        const double total = weights_.defined() ? total_weight_ : static_cast<double>(shard_.vocab);
        loss += smoothing() * (total * log_sum - weighted);
        coefficient += smoothing() * total;
      }
      scale[static_cast<size_t>(i)] = coefficient * std::exp(mine[i] - top) / sum;
      target[static_cast<size_t>(i)] = (1 - epsilon) * weight;
    }
    return loss;
  }

  const at::Tensor& labels_;
  const VocabShard& shard_;
  const CrossEntropyOptions& options_;
  at::Tensor weights_;  // f64 [vocab], or undefined: ones
  double total_weight_ = 0;
};

void check_options(const CrossEntropyOptions& options, int64_t vocab) {
  if (!(options.label_smoothing >= 0 && options.label_smoothing < 1))
    throw ConfigError(str("label_smoothing: ", options.label_smoothing, " (allowed: 0 to below 1)"));
  if (!(options.z_loss >= 0)) throw ConfigError(str("z_loss: ", options.z_loss, " (allowed: 0 and more)"));
  if (options.class_weights.defined() && (options.class_weights.dim() != 1 || options.class_weights.size(0) != vocab))
    throw ConfigError(hp::str("class_weights: ", options.class_weights.sizes(), " (allowed: [", vocab, "])"));
}

}  // namespace

at::Tensor HeadMethod::logits(const at::Tensor& hidden, const at::Tensor& weight) const { return at::linear(hidden, weight); }

LossSum HeadMethod::loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) const {
  return linear_cross_entropy(hidden, weight, labels);
}

LossSum sharded_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, const VocabShard& shard,
                                     const CrossEntropyOptions& options) {
  check_options(options, shard.vocab);
  const at::Tensor targets = labels.reshape({-1}).contiguous(), rows = hidden.reshape({targets.numel(), hidden.size(-1)});
  LossSum loss{.count = detail::checked_count(targets, shard.vocab, options.ignore_index)};
  const ShardedRows sharded(targets, shard, options);
  loss.sum = detail::linear_loss(rows, weight, shard.largest_size,
                                 [&](at::Tensor& logits, int64_t begin, bool gradient) { return sharded.run(logits, begin, gradient); });
  return loss;
}

}  // namespace hyper_parallel
