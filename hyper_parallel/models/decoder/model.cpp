// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/models/decoder/model.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/models/decoder/parallelize.h"
#include "hyper_parallel/nn/functional.h"

namespace hyper_parallel {
namespace {

LinearOptions matrix(int64_t in, int64_t out, bool bias, const DecoderConfig& config) {
  return {.in = in, .out = out, .bias = bias, .initializer = Initializer::normal(config.initializer_range)};
}
RmsNormOptions norm_of(int64_t size, const DecoderConfig& config) { return {.size = size, .eps = config.rms_norm_eps}; }

}  // namespace

DecoderAttention::DecoderAttention(Slot slot, const DecoderConfig& config)
    : ModuleOf(std::move(slot)),
      head_dim_(config.head_dim),
      q_proj_(child("q_proj"), matrix(config.hidden_size, config.num_heads * config.head_dim, config.attention_bias, config)),
      k_proj_(child("k_proj"), matrix(config.hidden_size, config.num_kv_heads * config.head_dim, config.attention_bias, config)),
      v_proj_(child("v_proj"), matrix(config.hidden_size, config.num_kv_heads * config.head_dim, config.attention_bias, config)),
      o_proj_(child("o_proj"), matrix(config.num_heads * config.head_dim, config.hidden_size, config.attention_bias, config)) {
  if (!config.qk_norm) return;
  q_norm_.emplace(child("q_norm"), norm_of(config.head_dim, config));
  k_norm_.emplace(child("k_norm"), norm_of(config.head_dim, config));
}

at::Tensor DecoderAttention::forward(const at::Tensor& x, RotaryRows rows, KvCache* cache, size_t layer) {
  const auto heads = [&](const at::Tensor& y) { return y.view({y.size(0), y.size(1), y.size(2) / head_dim_, head_dim_}); };
  at::Tensor q = heads(q_proj_(x)), k = heads(k_proj_(x)), v = heads(v_proj_(x));
  if (q_norm_) q = (*q_norm_)(q), k = (*k_norm_)(k);
  q = rotary(q, rows.cosine, rows.sine);
  k = rotary(k, rows.cosine, rows.sine);
  return o_proj_(attend(q, k, v, cache, layer));
}

at::Tensor DecoderAttention::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, KvCache* cache, size_t layer) const {
  if (cache == nullptr) return attention(q, k, v);
  cache->append(layer, k, v);
  const bool empty_before = cache->lengths.max().item<int64_t>() == 0;
  return empty_before ? attention(q, k, v) : cached_attention(q, cache->keys[layer], cache->values[layer], cache->lengths.add(1));
}

DecoderMlp::DecoderMlp(Slot slot, const DecoderConfig& config)
    : ModuleOf(std::move(slot)),
      gate_proj_(child("gate_proj"), matrix(config.hidden_size, config.intermediate_size, config.mlp_bias, config)),
      up_proj_(child("up_proj"), matrix(config.hidden_size, config.intermediate_size, config.mlp_bias, config)),
      down_proj_(child("down_proj"), matrix(config.intermediate_size, config.hidden_size, config.mlp_bias, config)) {}

at::Tensor DecoderMlp::forward(const at::Tensor& x) { return down_proj_(swiglu(gate_proj_(x), up_proj_(x))); }

DecoderLayer::DecoderLayer(Slot slot, const DecoderConfig& config)
    : ModuleOf(std::move(slot)),
      self_attn_(child("self_attn"), config),
      mlp_(child("mlp"), config),
      input_layernorm_(child("input_layernorm"), norm_of(config.hidden_size, config)),
      post_attention_layernorm_(child("post_attention_layernorm"), norm_of(config.hidden_size, config)) {}

at::Tensor DecoderLayer::forward(const at::Tensor& x, RotaryRows rows, KvCache* cache, size_t layer) {
  const at::Tensor attended = at::add(x, self_attn_(input_layernorm_(x), std::move(rows), cache, layer));
  return at::add(attended, mlp_(post_attention_layernorm_(attended)));
}

Decoder::Decoder(Slot slot, const DecoderConfig& config)
    : ModuleOf(std::move(slot)),
      embed_tokens(child("embed_tokens"), {config.vocab_size, config.hidden_size, Initializer::normal(config.initializer_range)}),
      norm(child("norm"), norm_of(config.hidden_size, config)) {
  for (int64_t i = 0; i < config.num_layers; ++i) layers.emplace_back(child("layers." + std::to_string(i)), config);
}

at::Tensor Decoder::forward(const at::Tensor& ids, RotaryRows rows, KvCache* cache) {
  at::Tensor x = embed_tokens(ids);
  for (size_t i = 0; i < layers.size(); ++i) x = layers[i](x, rows, cache, i);
  return norm(x);
}

DecoderHead::DecoderHead(Slot slot, const DecoderConfig& config, Parameter& embedding) : ModuleOf(std::move(slot)), weight_(&embedding) {
  if (config.tie_word_embeddings) {
    tie("weight", embedding);
    return;
  }
  own_.emplace(*this, "weight", embedding.sizes, Initializer::normal(config.initializer_range));
  weight_ = &*own_;
}

LmOutput DecoderHead::forward(const at::Tensor& hidden, const at::Tensor& labels) {
  if (!labels.defined()) return {method().logits(hidden, weight_->tensor)};
  LossSum loss = method().loss(hidden, weight_->tensor, labels);
  return {std::move(loss.sum), loss.count};
}

DecoderLm::DecoderLm(const DecoderConfig& config, nlohmann::json json)
    : ModuleOf(root()),
      config_(config),
      json_(std::move(json)),
      model_(child("model"), config_),
      lm_head_(child("lm_head"), config_, model_.embed_tokens.weight),
      rotary_(config_.rotary) {}

std::vector<Module*> DecoderLm::shard_units() {
  std::vector<Module*> units;
  for (DecoderLayer& layer : model_.layers) units.push_back(&layer);
  return units;
}

ParallelPlan DecoderLm::tensor_parallel_plan(const TensorParallelOptions& options) const {
  return decoder_tensor_parallel_plan(config_, options);
}

RotaryRows DecoderLm::rotary_rows(const LmCall& call) {
  const int64_t seq = call.ids.size(1), before = call.cache == nullptr ? 0 : call.cache->lengths.max().item<int64_t>();
  auto [cosine, sine] = rotary_.rows(before + seq, model_.embed_tokens.weight.tensor.scalar_type());
  if (before == 0) return {cosine, sine};
  const at::Tensor positions = call.cache->lengths;
  return {cosine.index_select(0, positions).unsqueeze(1), sine.index_select(0, positions).unsqueeze(1)};
}

LmOutput DecoderLm::forward(LmCall call) {
  HYPER_PARALLEL_CHECK(!model_.embed_tokens.weight.tensor.is_meta(), "the model has no weights yet: materialize() or load_weights() first");
  at::Tensor hidden = model_(call.ids, rotary_rows(call), call.cache);
  if (call.cache != nullptr) {  // only each row's last token goes on to the head
    const int64_t batch = call.ids.size(0), seq = call.ids.size(1);
    const at::Tensor last = at::arange(batch, at::kLong).mul(seq).add(call.counts).sub(1);
    hidden = hidden.reshape({batch * seq, -1}).index_select(0, last);
  }
  return lm_head_(hidden, call.labels);
}

}  // namespace hyper_parallel
