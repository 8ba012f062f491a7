// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/tensor_parallel/styles.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/nn/layers.h"
#include "hyper_parallel/tensor_parallel/detail/hooks.h"

namespace hyper_parallel {
namespace {

using detail::RegionHook;

// The ranges of every rank, in rank order.
std::vector<std::vector<IndexRange>> all_ranges(const ParallelRegion& region, int64_t size, const SplitFunction& split,
                                                const std::vector<int64_t>& parts) {
  std::vector<std::vector<IndexRange>> ranges(static_cast<size_t>(region.size()));
  for (int64_t r = 0; r < region.size(); ++r) {
    auto& mine = ranges[static_cast<size_t>(r)];
    if (split) {
      mine = split(region.size(), r);
      continue;
    }
    int64_t begin = 0;
    for (int64_t part : parts.empty() ? std::vector<int64_t>{size} : parts) {
      const Interval chunk = chunk_of(part, region.size(), r);
      if (chunk.size() > 0) mine.push_back({begin + chunk.begin, begin + chunk.end});
      begin += part;
    }
  }
  return ranges;
}

std::vector<int64_t> sizes_of(const std::vector<std::vector<IndexRange>>& ranges) {
  std::vector<int64_t> sizes;
  for (const auto& mine : ranges) sizes.push_back(TensorPart{0, mine}.size());
  return sizes;
}

// The ranges of all ranks must be [0, size). Where tensors are put together or cut, that is done in rank order (`in_order`).
void check_split(const StyleTarget& target, const ParallelStyle& style, const std::vector<std::vector<IndexRange>>& ranges, int64_t size,
                 bool in_order) {
  std::vector<std::pair<size_t, IndexRange>> all;
  for (size_t r = 0; r < ranges.size(); ++r)
    for (const IndexRange& range : ranges[r]) all.emplace_back(r, range);
  if (!in_order) std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second.begin < b.second.begin; });
  int64_t end = 0;
  for (const auto& [r, range] : all) {
    if (range.size() == 0) continue;
    if (range.begin != end || range.end < range.begin)
      target.fail(style.describe(),
                  str("the split gives rank ", r, " the range [", range.begin, ", ", range.end, "), expected one from ", end));
    end = range.end;
  }
  if (end != size) target.fail(style.describe(), str("the split ends at ", end, ", of ", size));
}

bool in_chunks(const ColwiseOptions& options) { return !options.split && options.parts.empty(); }

struct ColwiseHook : RegionHook {
  ColwiseHook(const StyleTarget& target, ColwiseOptions options, std::vector<int64_t> sizes, bool embedding)
      : RegionHook(target), options(std::move(options)), sizes(std::move(sizes)), embedding(embedding) {}
  void pre_forward(Module&, TensorRefs arguments) override {
    at::Tensor& x = *arguments[0];
    x = region->local(x, options.input);
    if (!embedding) x = region->enter(x, options.input);
  }
  void post_forward(Module& module, TensorRefs results) override {
    at::Tensor& y = *results[0];
    if (embedding) region->forget();
    const bool stays = options.output.is_shard(-1) || options.output.is_shard(static_cast<int>(y.dim()) - 1);
    if (stays && !options.use_local_output && !in_chunks(options))
      throw LayoutError(str("tensor parallel: \"", module.name, "\": a DTensor is split in chunks; an own split can't be its output"));
    if (!stays) {  // in two moves: `sizes` are along the last dim
      y = region->move(y, shard(-1), replicate(), GradientOf::kWhole, sizes);
      y = region->move(y, replicate(), options.output, GradientOf::kWhole);
    }
    if (!options.use_local_output) y = region->wrap(y, options.output);
  }
  const ColwiseOptions options;
  const std::vector<int64_t> sizes;
  const bool embedding;
};

struct RowwiseLinearHook : RegionHook {
  RowwiseLinearHook(const StyleTarget& target, Linear& linear, RowwiseOptions options, std::vector<int64_t> sizes)
      : RegionHook(target), linear(linear), options(std::move(options)), sizes(std::move(sizes)) {}
  void pre_forward(Module&, TensorRefs arguments) override {
    at::Tensor& x = *arguments[0];
    const Placement from = options.input.value_or(shard(-1));
    x = region->local(x, from);
    if (!from.is_shard(-1)) x = region->move(x, from, shard(-1), GradientOf::kWhole, sizes);
  }
  void post_forward(Module&, TensorRefs results) override {
    at::Tensor& y = *results[0];
    region->forget();
    if (linear.bias && options.output.is_shard(static_cast<int>(y.dim()) - 1))
      throw LayoutError(
          str("tensor parallel: \"", linear.name, "\": its bias can't be added to an output that is split along its last dim"));
    y = region->move(y, partial(), options.output, GradientOf::kWhole);
    if (linear.bias) y = y + linear.bias->tensor;
    if (!options.use_local_output) y = region->wrap(y, options.output);
  }
  Linear& linear;
  const RowwiseOptions options;
  const std::vector<int64_t> sizes;
};

// Rows of other ranks are looked up as row 0 and then erased.
struct RowwiseEmbeddingHook : RegionHook {
  RowwiseEmbeddingHook(const StyleTarget& target, Embedding& embedding, RowwiseOptions options)
      : RegionHook(target), embedding(embedding), options(std::move(options)) {}
  void pre_forward(Module&, TensorRefs arguments) override {
    at::Tensor& ids = *arguments[0];
    ids = region->local(ids, options.input.value_or(replicate()));
    check_indices(ids, embedding.weight.sizes[0]);
    const TensorPart& part = embedding.weight.part();
    const IndexRange mine = part.is_whole()       ? IndexRange{0, embedding.weight.sizes[0]}
                            : part.ranges.empty() ? IndexRange{}
                                                  : part.ranges[0];
    elsewhere = ids.lt(mine.begin).logical_or_(ids.ge(mine.end));
    ids = ids.sub(mine.begin).masked_fill_(elsewhere, 0);
  }
  void post_forward(Module&, TensorRefs results) override {
    at::Tensor& y = *results[0];
    y = region->move(y.masked_fill(std::exchange(elsewhere, {}).unsqueeze(-1), 0), partial(), options.output, GradientOf::kWhole);
    if (!options.use_local_output) y = region->wrap(y, options.output);
  }
  Embedding& embedding;
  const RowwiseOptions options;
  at::Tensor elsewhere;
};

struct SequenceHook : RegionHook {
  SequenceHook(const StyleTarget& target, SequenceOptions options) : RegionHook(target), options(std::move(options)) {}
  void pre_forward(Module&, TensorRefs arguments) override {
    at::Tensor& x = *arguments[0];
    const Placement want = shard(options.sequence_dim), from = options.input.value_or(want);
    x = region->move(region->local(x, from), from, want, GradientOf::kWhole);
  }
  void post_forward(Module&, TensorRefs results) override {
    if (!options.use_local_output) *results[0] = region->wrap(*results[0], shard(options.sequence_dim));
  }
  const SequenceOptions options;
};

struct MovesHook : RegionHook {
  MovesHook(const StyleTarget& target, Moves moves, bool of_results)
      : RegionHook(target), moves(std::move(moves)), of_results(of_results) {}
  void pre_forward(Module& module, TensorRefs arguments) override {
    if (!of_results) run(module, arguments, GradientOf::kTerm);
  }
  void post_forward(Module& module, TensorRefs results) override {
    if (of_results) run(module, results, GradientOf::kWhole);
  }
  void run(Module& module, TensorRefs tensors, GradientOf usual) {
    if (moves.size() > tensors.size())
      throw LayoutError(str("tensor parallel: \"", module.name, "\" has ", tensors.size(), of_results ? " results, " : " arguments, ",
                            moves.size(), " are prepared"));
    for (size_t i = 0; i < moves.size(); ++i) {
      if (!moves[i] || !tensors[i]->defined()) continue;
      const auto& [from, to, gradient] = *moves[i];
      const at::Tensor x = region->local(*tensors[i], from);
      const GradientOf of = gradient.value_or(usual);
      *tensors[i] = to.is_replicate() && of == GradientOf::kTerm ? region->enter(x, from) : region->move(x, from, to, of);
    }
  }
  const Moves moves;
  const bool of_results;
};

}  // namespace

void ColwiseParallel::apply(const StyleTarget& target) const {
  auto* linear = dynamic_cast<Linear*>(&target.module);
  auto* embedding = dynamic_cast<Embedding*>(&target.module);
  if (linear == nullptr && embedding == nullptr) target.fail(describe(), "it takes Linear and Embedding modules");
  if (!options_.parts.empty() && !options_.output.is_shard(-1)) target.fail(describe(), "fused parts can only stay split");
  Parameter& weight = linear != nullptr ? linear->weight : embedding->weight;
  const int64_t dim = linear != nullptr ? 0 : 1, size = weight.sizes[static_cast<size_t>(dim)];
  if (!options_.parts.empty() && std::accumulate(options_.parts.begin(), options_.parts.end(), int64_t{0}) != size)
    target.fail(describe(), str("parts ", options_.parts, " don't add up to ", size));
  if (!options_.use_local_output && !in_chunks(options_) && options_.output.is_shard(-1))
    target.fail(describe(), "a DTensor's shard(-1) is in chunks: an own split can't be its output");
  const auto ranges = all_ranges(*target.region, size, options_.split, options_.parts);
  if (options_.split) check_split(target, *this, ranges, size, !options_.output.is_shard(-1));
  const TensorPart part{dim, ranges[static_cast<size_t>(target.region->rank())]};
  target.region->hold(target, weight, part);
  if (linear != nullptr && linear->bias) target.region->hold(target, *linear->bias, part);
  target.module.add_hook(std::make_shared<ColwiseHook>(target, options_, sizes_of(ranges), embedding != nullptr));
}

void RowwiseParallel::apply(const StyleTarget& target) const {
  auto* linear = dynamic_cast<Linear*>(&target.module);
  auto* embedding = dynamic_cast<Embedding*>(&target.module);
  ParallelRegion& region = *target.region;
  if (embedding != nullptr) {
    if (options_.split) target.fail(describe(), "an embedding's rows are split by torch.chunk's rule");
    if (options_.input && !options_.input->is_replicate()) target.fail(describe(), "the ids of an embedding must arrive replicated");
    region.hold(target, embedding->weight, {0, {region.chunk(embedding->weight.sizes[0])}});
    return embedding->add_hook(std::make_shared<RowwiseEmbeddingHook>(target, *embedding, options_));
  }
  if (linear == nullptr) target.fail(describe(), "it takes Linear and Embedding modules");
  const auto ranges = all_ranges(region, linear->weight.sizes[1], options_.split, {});
  if (options_.split) check_split(target, *this, ranges, linear->weight.sizes[1], options_.input && !options_.input->is_shard(-1));
  if (linear->bias && (options_.output.is_partial() || options_.output.is_shard(-1)))
    target.fail(describe(), str("its bias can't be added to an output that is ", options_.output.to_string(),
                                " (allowed: replicate, or a dim before the last)"));
  region.hold(target, linear->weight, {1, ranges[static_cast<size_t>(region.rank())]});
  if (linear->bias) {
    // Behind a sum every rank has the whole gradient of the bias, behind a reduce-scatter that of its positions.
    region.hold(target, *linear->bias, {},
                {.in_common = true,
                 .sum_gradients = options_.output.is_replicate() ? ProcessGroup() : region.group(),
                 .counted = region.rank() == 0});
    linear->adds_bias = false;
  }
  linear->add_hook(std::make_shared<RowwiseLinearHook>(target, *linear, options_, sizes_of(ranges)));
}

void SequenceParallel::apply(const StyleTarget& target) const {
  for (const auto& [name, parameter] : target.module.named_parameters())
    target.region->hold(target, *parameter, {},
                        {.in_common = true, .sum_gradients = target.region->group(), .counted = target.region->rank() == 0});
  target.module.add_hook(std::make_shared<SequenceHook>(target, options_));
}

void PrepareModuleInput::apply(const StyleTarget& target) const {
  target.module.add_outer_hook(std::make_shared<MovesHook>(target, inputs_, false));
}

void PrepareModuleOutput::apply(const StyleTarget& target) const {
  target.module.add_outer_hook(std::make_shared<MovesHook>(target, outputs_, true));
}

}  // namespace hyper_parallel
