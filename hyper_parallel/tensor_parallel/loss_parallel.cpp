// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/tensor_parallel/loss_parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/differentiable.h"

namespace hyper_parallel {
namespace {

class GroupVocabShard : public VocabShard {
 public:
  GroupVocabShard(ProcessGroup group, int64_t vocab_size) : group_(std::move(group)) {
    vocab = vocab_size;
    num_shards = group_.size();
    begin = chunk_of(vocab, num_shards, group_.rank()).begin;
    largest_size = chunk_of(vocab, num_shards, 0).size();
  }
  at::Tensor gather(const at::Tensor& mine) const override {
    std::vector<int64_t> sizes = mine.sizes().vec();
    sizes.insert(sizes.begin(), num_shards);
    at::Tensor all = at::empty(sizes, mine.options());
    group_.all_gather(all, mine).wait();
    return all;
  }

 private:
  const ProcessGroup group_;
};

class VocabParallelMethod : public HeadMethod {
 public:
  VocabParallelMethod(std::shared_ptr<ParallelRegion> region, int64_t vocab, VocabParallelOptions options)
      : region_(std::move(region)), shard_(region_->group(), vocab), options_(std::move(options)) {}

  at::Tensor logits(const at::Tensor& hidden, const at::Tensor& weight) const override {
    const at::Tensor local = at::linear(enter(hidden), weight);
    return region_->move(local, hyper_parallel::shard(-1), replicate(), GradientOf::kWhole, region_->chunk_sizes(shard_.vocab));
  }
  LossSum loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) const override {
    if (!options_.loss_parallel) return cross_entropy(logits(hidden, weight), labels);
    return sharded_linear_cross_entropy(enter(hidden), weight, labels, shard_, options_.loss);
  }

 private:
  // The last of a region to enter: nothing is kept for siblings.
  at::Tensor enter(const at::Tensor& hidden) const {
    at::Tensor entered = region_->enter(hidden, replicate());
    region_->forget();
    return entered;
  }
  const std::shared_ptr<ParallelRegion> region_;
  const GroupVocabShard shard_;
  const VocabParallelOptions options_;
};

}  // namespace

void VocabParallelHead::apply(const StyleTarget& target) const {
  auto* head = dynamic_cast<Head*>(&target.module);
  if (head == nullptr) target.fail(describe(), "the module is no Head");
  if (!options_.loss_parallel && (options_.loss.label_smoothing != 0 || options_.loss.z_loss != 0 ||
                                  options_.loss.class_weights.defined() || options_.loss.ignore_index != kIgnoreLabel))
    throw ConfigError(str("VocabParallelHead on \"", target.name, "\": loss options need loss_parallel"));
  for (const auto& [name, parameter] : target.module.own_parameters()) {
    if (name != "weight") continue;
    target.region->hold(target, *parameter, {0, {target.region->chunk(parameter->sizes[0])}});
    return head->set_method(std::make_shared<VocabParallelMethod>(target.region, parameter->sizes[0], options_));
  }
  target.fail(describe(), "the module has no parameter \"weight\"");
}

LossSum vocab_parallel_cross_entropy(const ProcessGroup& group, const at::Tensor& hidden, const at::Tensor& weight,
                                     const at::Tensor& labels, int64_t vocab, const CrossEntropyOptions& options) {
  const Interval mine = chunk_of(vocab, group.size(), group.rank());
  if (weight.dim() != 2 || weight.size(0) != mine.size())
    throw LayoutError(
        hp::str("vocab_parallel_cross_entropy: weight ", weight.sizes(), " (this rank's rows: ", mine.size(), " of ", vocab, ")"));
  return sharded_linear_cross_entropy(collectives::differentiable::copy_to_group(group, hidden), weight, labels,
                                      GroupVocabShard(group, vocab), options);
}

}  // namespace hyper_parallel
