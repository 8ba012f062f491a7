// SPDX-License-Identifier: Apache-2.0
// A small residual network with everything that is hard for an engine: tied, frozen, unused parameters, odd sizes, a unit called twice,
// recompute in or around a unit, a parameter of the root itself.
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <vector>

#include "hyper_parallel/nn/module.h"

namespace hyper_parallel::testing_support {

enum class Recompute { kNone, kInside, kAround };  // within the unit's hooks, or around its call

struct TinyOptions {
  Recompute recompute = Recompute::kNone;
  std::vector<int> calls{0, 1, 2};  // blocks in the order of their calls
  bool freeze_first = false;        // embedding and block 0
};

// One batch of the fixed data: samples [from, from + count) of `step`. Samples from kFirstWithoutLabels on have no valid label, the others
// 7 or 1 of 8.
constexpr int64_t kVocab = 11, kWidth = 6, kHidden = 10, kLength = 8, kNumSamples = 24, kFirstWithoutLabels = 18;
struct Batch {
  at::Tensor tokens, labels;  // [count, kLength]
};
Batch batch_of(int step, int64_t from, int64_t count);
// Sum over valid labels.
at::Tensor sum_loss(const at::Tensor& logits, const at::Tensor& labels);

struct TinyEmbedding : ModuleOf<TinyEmbedding> {
  using ModuleOf::ModuleOf;
  at::Tensor forward(const at::Tensor& tokens);
  Parameter weight{*this, "weight", {kVocab, kWidth}, Initializer::normal(0.4)};
  Parameter scale{*this, "scale", {kWidth}, Initializer::uniform(0.5, 1.5), false};
};

struct TinyBlock : ModuleOf<TinyBlock> {
  TinyBlock(Slot slot, Recompute recompute);
  at::Tensor forward(const at::Tensor& x);
  at::Tensor body(const at::Tensor& x);
  const Recompute recompute;
  bool uses_shift = true;
  Parameter gain{*this, "gain", {kWidth}, Initializer::uniform(0.5, 1.5), false};
  Parameter up{*this, "up", {kHidden, kWidth}, Initializer::normal(0.4)};
  Parameter up_bias{*this, "up_bias", {kHidden}, Initializer::normal(0.1), false};
  Parameter down{*this, "down", {kWidth, kHidden}, Initializer::normal(0.4)};
  Parameter gate{*this, "gate", {kWidth}, Initializer::uniform(0.5, 1.5)};  // frozen
  Parameter shift{*this, "shift", {kWidth}, Initializer::normal(0.1), false};
};

struct TinyHead : ModuleOf<TinyHead> {
  TinyHead(Slot slot, Parameter& tied);
  at::Tensor forward(const at::Tensor& x);
  Parameter& weight;
  Parameter gain{*this, "gain", {kWidth}, Initializer::ones(), false};
  Parameter bias{*this, "bias", {kVocab}, Initializer::zeros(), false};
};

struct TinyModel : ModuleOf<TinyModel> {
  explicit TinyModel(const TinyOptions& options = {});
  at::Tensor forward(const at::Tensor& tokens);  // logits [batch, kLength, kVocab]
  std::vector<Module*> units();
  const TinyOptions options;
  enum class Fail { kNever, kForward, kBackward } fail = Fail::kNever;
  TinyEmbedding embed{child("embed")};
  std::deque<TinyBlock> blocks;
  TinyHead head{child("head"), embed.weight};
  Parameter temperature{*this, "temperature", {}, Initializer::ones()};
};

}  // namespace hyper_parallel::testing_support
