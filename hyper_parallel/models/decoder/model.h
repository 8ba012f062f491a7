// SPDX-License-Identifier: Apache-2.0
// The dense decoder that Llama, Qwen3 and alike are: pre-norm layers of grouped attention and SwiGLU. Submodule and parameter names are
// Hugging Face's, so weights map one to one. b batch, s sequence, h hidden.
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "hyper_parallel/models/causal_lm.h"
#include "hyper_parallel/models/decoder/config.h"
#include "hyper_parallel/nn/head.h"
#include "hyper_parallel/nn/layers.h"
#include "hyper_parallel/nn/rotary.h"

namespace hyper_parallel {

// Tables of the positions at hand; travels with the call so that a recomputed layer sees the same.
struct RotaryRows {
  at::Tensor cosine, sine;  // [s, head_dim / 2] or [b, s, head_dim / 2]
  template <class F>
  void visit_tensors(F&& f) {
    f(cosine), f(sine);
  }
};

class DecoderAttention : public ModuleOf<DecoderAttention> {
 public:
  DecoderAttention(Slot slot, const DecoderConfig& config);
  // x: [b, s, h]; layer: index into cache, which is null outside decoding.
  at::Tensor forward(const at::Tensor& x, RotaryRows rows, KvCache* cache, size_t layer);

 private:
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, KvCache* cache, size_t layer) const;
  const int64_t head_dim_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::optional<RmsNorm> q_norm_, k_norm_;
};

class DecoderMlp : public ModuleOf<DecoderMlp> {
 public:
  DecoderMlp(Slot slot, const DecoderConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  Linear gate_proj_, up_proj_, down_proj_;
};

class DecoderLayer : public ModuleOf<DecoderLayer> {
 public:
  DecoderLayer(Slot slot, const DecoderConfig& config);
  at::Tensor forward(const at::Tensor& x, RotaryRows rows, KvCache* cache, size_t layer);

 private:
  DecoderAttention self_attn_;
  DecoderMlp mlp_;
  RmsNorm input_layernorm_, post_attention_layernorm_;
};

// "model": embedding, layers, last norm.
class Decoder : public ModuleOf<Decoder> {
 public:
  Decoder(Slot slot, const DecoderConfig& config);
  at::Tensor forward(const at::Tensor& ids, RotaryRows rows, KvCache* cache);
  Embedding embed_tokens;
  std::deque<DecoderLayer> layers;
  RmsNorm norm;
};

// "lm_head": its own weight [vocab, hidden], or the embedding's under a second name.
class DecoderHead : public ModuleOf<DecoderHead>, public Head {
 public:
  DecoderHead(Slot slot, const DecoderConfig& config, Parameter& embedding);
  // Logits of `hidden`, or with labels the loss sum and their count.
  LmOutput forward(const at::Tensor& hidden, const at::Tensor& labels);

 private:
  std::optional<Parameter> own_;
  Parameter* weight_;
};

class DecoderLm final : public ModuleOf<DecoderLm>, public CausalLm {
 public:
  // `json`: the configuration as Hugging Face writes it, kept for config().
  DecoderLm(const DecoderConfig& config, nlohmann::json json);
  LmOutput forward(LmCall call);

  Module& module() override { return *this; }
  std::vector<Module*> shard_units() override;
  ParallelPlan tensor_parallel_plan(const TensorParallelOptions& options) const override;
  const nlohmann::json& config() const override { return json_; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.max_position_embeddings; }
  const DecoderConfig& decoder_config() const { return config_; }

 protected:
  LmOutput call(LmCall call) override { return (*this)(std::move(call)); }
  int64_t num_layers() const override { return config_.num_layers; }

 private:
  RotaryRows rotary_rows(const LmCall& call);
  const DecoderConfig config_;
  const nlohmann::json json_;
  Decoder model_;
  DecoderHead lm_head_;
  RotaryTable rotary_;
};

}  // namespace hyper_parallel
