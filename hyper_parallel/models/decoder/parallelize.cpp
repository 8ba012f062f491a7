// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/models/decoder/parallelize.h"

#include "hyper_parallel/tensor_parallel/attention_heads.h"
#include "hyper_parallel/tensor_parallel/loss_parallel.h"

namespace hyper_parallel {

ParallelPlan decoder_tensor_parallel_plan(const DecoderConfig& config, const TensorParallelOptions& options) {
  const AttentionHeads heads{config.num_heads, config.num_kv_heads, config.head_dim};
  // Between blocks activations are whole on every rank, or split along the sequence.
  const Placement between = options.sequence_parallel ? shard(1) : replicate();
  ParallelPlan plan{
      {"model.embed_tokens", RowwiseParallel({.output = between})},
      {"model.layers.*.self_attn", PrepareModuleInput({Move{between, replicate()}})},
      {"model.layers.*.self_attn.q_proj", QueryHeads(heads)},
      {"model.layers.*.self_attn.k_proj", KeyHeads(heads)},
      {"model.layers.*.self_attn.v_proj", KeyHeads(heads)},
      {"model.layers.*.self_attn.o_proj", OutputHeads(heads, between)},
      {"model.layers.*.mlp", PrepareModuleInput({Move{between, replicate()}})},
      {"model.layers.*.mlp.gate_proj", ColwiseParallel()},
      {"model.layers.*.mlp.up_proj", ColwiseParallel()},
      {"model.layers.*.mlp.down_proj", RowwiseParallel({.output = between})},
      {"lm_head", VocabParallelHead({.loss_parallel = options.loss_parallel})},
  };
  if (config.qk_norm) {
    for (const char* norm : {"model.layers.*.self_attn.q_norm", "model.layers.*.self_attn.k_norm"})
      plan.emplace_back(norm, SequenceParallel({.sequence_dim = 2}));  // over heads
  }
  if (options.sequence_parallel) {
    for (const char* norm : {"model.layers.*.input_layernorm", "model.layers.*.post_attention_layernorm", "model.norm"})
      plan.emplace_back(norm, SequenceParallel());
    plan.emplace_back("model", PrepareModuleOutput({Move{shard(1), replicate(), GradientOf::kTerm}}));
  }
  return plan;
}

}  // namespace hyper_parallel
