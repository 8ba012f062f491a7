// SPDX-License-Identifier: Apache-2.0
// The parallel styles, under PyTorch's names and with its defaults. `input` is how a tensor arrives, `output` how it leaves; between the
// modules of one block tensors stay split. A tensor that arrives replicated, or is gathered, is summed over ranks in backward.
//
//   ColwiseParallel()                       Linear: rows of the weight and the bias are split; the result is shard(-1)
//                                           Embedding: columns of the weight are split; the result is shard(-1)
//   RowwiseParallel({.output = shard(1)})   Linear: columns of the weight are split, the input is shard(-1), results are summed, then the
//                                           whole bias is added once. Embedding: rows are split (the vocabulary)
//   SequenceParallel()                      any module with whole weights that works on each position alone (norms)
//   PrepareModuleInput(...)                 moves a module's arguments, PrepareModuleOutput(...) its results, around its other styles
//
// Uneven splits and empty ones are exact. Errors: LayoutError for modules that a style doesn't know, and for impossible placements.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hyper_parallel/tensor_parallel/parallel_style.h"

namespace hyper_parallel {

// The ranges of the split dim that a rank takes, ascending: each index is one rank's. Where tensors are joined or cut (an output, or a
// Rowwise input, other than shard(-1)) the ranks' ranges must follow each other in rank order.
using SplitFunction = std::function<std::vector<IndexRange>(int64_t num_ranks, int64_t rank)>;

struct ColwiseOptions {
  Placement input = replicate();
  Placement output = shard(-1);
  std::vector<int64_t> parts = {};  // sizes of fused projections in the split dim (q, k, v; gate, up), each split by itself
  SplitFunction split = {};         // instead of torch.chunk's rule
  bool use_local_output = true;     // false: the result is a DTensor
};
class ColwiseParallel : public ParallelStyle {
 public:
  explicit ColwiseParallel(ColwiseOptions options = {}) : options_(std::move(options)) {}
  std::string describe() const override { return "ColwiseParallel"; }
  void apply(const StyleTarget& target) const override;

 private:
  ColwiseOptions options_;
};

struct RowwiseOptions {
  std::optional<Placement> input = {};  // Linear: shard(-1), Embedding: replicate()
  Placement output = replicate();
  SplitFunction split = {};
  bool use_local_output = true;
};
class RowwiseParallel : public ParallelStyle {
 public:
  explicit RowwiseParallel(RowwiseOptions options = {}) : options_(std::move(options)) {}
  std::string describe() const override { return "RowwiseParallel"; }
  void apply(const StyleTarget& target) const override;

 private:
  RowwiseOptions options_;
};

struct SequenceOptions {
  int sequence_dim = 1;
  std::optional<Placement> input = {};  // shard(sequence_dim); replicate(): this rank takes its part first
  bool use_local_output = true;
};
class SequenceParallel : public ParallelStyle {
 public:
  explicit SequenceParallel(SequenceOptions options = {}) : options_(std::move(options)) {}
  std::string describe() const override { return "SequenceParallel"; }
  void apply(const StyleTarget& target) const override;

 private:
  SequenceOptions options_;
};

// How one tensor arrives and how it is wanted.
struct Move {
  Placement from, to;
  // What the gradient of the moved tensor is on each rank. An argument goes to colwise modules as a rule: a term; a result to modules that
  // all ranks compute alike: the whole one.
  std::optional<GradientOf> gradient = {};
};
using Moves = std::vector<std::optional<Move>>;  // by position among the tensors; nullopt and missing ones stay as they are

class PrepareModuleInput : public ParallelStyle {
 public:
  explicit PrepareModuleInput(Moves inputs) : inputs_(std::move(inputs)) {}
  std::string describe() const override { return "PrepareModuleInput"; }
  void apply(const StyleTarget& target) const override;

 private:
  Moves inputs_;
};

class PrepareModuleOutput : public ParallelStyle {
 public:
  explicit PrepareModuleOutput(Moves outputs) : outputs_(std::move(outputs)) {}
  std::string describe() const override { return "PrepareModuleOutput"; }
  void apply(const StyleTarget& target) const override;

 private:
  Moves outputs_;
};

class PrepareModuleInputOutput : public ParallelStyle {
 public:
  PrepareModuleInputOutput(Moves inputs, Moves outputs) : input_(std::move(inputs)), output_(std::move(outputs)) {}
  std::string describe() const override { return "PrepareModuleInputOutput"; }
  void apply(const StyleTarget& target) const override { input_.apply(target), output_.apply(target); }

 private:
  PrepareModuleInput input_;
  PrepareModuleOutput output_;
};

}  // namespace hyper_parallel
