// SPDX-License-Identifier: Apache-2.0
// What a causal language model offers to training and generation, and the registry of models.
//
//   auto model = make_model("qwen3", json, "qwen3/config.json");
//   materialize(model->module(), {.dtype = at::kFloat, .seed = 1});     // or load_weights(), models/weights.h
//   LossSum loss = model->loss_sum(input_ids, labels);                  // labels[b, s] is the target of position s
//   (loss.sum / total_tokens).backward();
//
// Every entry point below is one call of the root module with its hooks, and its result is that call's result, so engines that gather
// weights around a call (fully_shard) cover the head, the loss and decoding.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hyper_parallel/nn/loss.h"
#include "hyper_parallel/nn/module.h"
#include "hyper_parallel/tensor_parallel/parallelize_module.h"

namespace hyper_parallel {

// Keys and values of the tokens seen so far, one cache for a batch; rows may have different lengths.
struct KvCache {
  std::vector<at::Tensor> keys, values;  // per layer [batch, capacity, kv_heads of this rank, head_dim], undefined until the first append
  at::Tensor lengths;                    // int64 [batch]: positions filled
  int64_t capacity = 0;
  // Appends new_keys, new_values [batch, count, kv_heads, head_dim] of one layer behind each row's length; lengths stay.
  void append(size_t layer, const at::Tensor& new_keys, const at::Tensor& new_values);
};

// The root module's argument and result.
struct LmCall {
  at::Tensor ids;            // int64 [batch, seq]
  at::Tensor labels;         // int64 [batch, seq]: the result is the loss sum
  KvCache* cache = nullptr;  // the result is the logits of each row's last token
  at::Tensor counts;         // with a cache: int64 [batch], tokens of each row that are real (the first ones)
  template <class F>
  void visit_tensors(F&& f) {
    f(ids), f(labels), f(counts);
  }
};
struct LmOutput {
  at::Tensor value;   // logits [batch, seq, vocab], loss sum [], or last logits [batch, vocab]
  int64_t count = 0;  // labels that are not ignored
  template <class F>
  void visit_tensors(F&& f) {
    f(value);
  }
};

struct TensorParallelOptions {
  bool sequence_parallel = false;  // activations between blocks are split along the sequence
  bool loss_parallel = true;       // no rank holds whole rows of logits
};

class CausalLm {
 public:
  virtual ~CausalLm() = default;
  virtual Module& module() = 0;
  // The decoder layers, in order: what fully_shard, recompute and pipelines cut by. The rest belongs to the root.
  virtual std::vector<Module*> shard_units() = 0;
  // What tensor parallelism does to the root's modules.
  virtual ParallelPlan tensor_parallel_plan(const TensorParallelOptions& options) const = 0;
  virtual const nlohmann::json& config() const = 0;  // as Hugging Face writes it
  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_positions() const = 0;

  at::Tensor logits(const at::Tensor& input_ids);  // [batch, seq] -> [batch, seq, vocab]
  LossSum loss_sum(const at::Tensor& input_ids, const at::Tensor& labels);

  // Decoding, without gradients: an empty cache, prefill once, then decode one token a row at a time.
  KvCache make_cache(int64_t batch, int64_t capacity);
  // ids: [batch, seq], row b padded behind its counts[b] >= 1 tokens. Returns the logits after each row's last token, [batch, vocab].
  at::Tensor prefill(const at::Tensor& ids, const at::Tensor& counts, KvCache& cache);
  // ids: [batch]. RuntimeError if a row's cache is full.
  at::Tensor decode(const at::Tensor& ids, KvCache& cache);

 protected:
  virtual LmOutput call(LmCall call) = 0;
  virtual int64_t num_layers() const = 0;
};

// Builds a model on the meta device; `where` names the source of `config` in errors.
using ModelFactory = std::unique_ptr<CausalLm> (*)(const nlohmann::json& config, const std::string& where);

struct ModelEntry {
  ModelFactory factory;
  std::string architecture;  // transformers' class, written to config.json
  std::string doc;           // one line for `info` and the docs
};

// Registers at load; InternalError on a duplicate. Use HYPER_PARALLEL_MODEL in the model's own file.
bool register_model(const std::string& type, ModelEntry entry);
std::vector<std::string> model_names();                  // alphabetical
const ModelEntry& model_entry(const std::string& type);  // ConfigError lists the known types
// `type` may be empty: config["model_type"] says it. ConfigError if both are there and differ.
std::unique_ptr<CausalLm> make_model(const std::string& type, const nlohmann::json& config, const std::string& where = "model config");

#define HYPER_PARALLEL_MODEL(type, ...) \
  [[maybe_unused]] static const bool registered_model = ::hyper_parallel::register_model(type, ::hyper_parallel::ModelEntry __VA_ARGS__)

}  // namespace hyper_parallel
