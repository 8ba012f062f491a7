// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/models/causal_lm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <map>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

std::map<std::string, ModelEntry>& registry() {
  static std::map<std::string, ModelEntry> entries;
  return entries;
}

void check_ids(const at::Tensor& ids, const char* name) {
  if (ids.dim() != 2 || ids.scalar_type() != at::kLong)
    throw DataError(hp::str(name, ": ", c10::toString(ids.scalar_type()), " ", ids.sizes(), " (allowed: int64 [batch, seq])"));
}

}  // namespace

void KvCache::append(size_t layer, const at::Tensor& new_keys, const at::Tensor& new_values) {
  for (at::Tensor* list : {&keys[layer], &values[layer]})  // as many heads as this rank has
    if (!list->defined()) *list = at::empty({new_keys.size(0), capacity, new_keys.size(2), new_keys.size(3)}, new_keys.options());
  const int64_t row_bytes = keys[layer].size(2) * keys[layer].size(3) * keys[layer].element_size(), count = new_keys.size(1);
  for (auto [cache, added] : {std::pair{&keys[layer], &new_keys}, std::pair{&values[layer], &new_values}}) {
    if (row_bytes == 0) continue;
    const at::Tensor rows = added->to(cache->scalar_type()).contiguous();
    const auto* from = static_cast<const char*>(rows.const_data_ptr());
    auto* to = static_cast<char*>(cache->mutable_data_ptr());
    for (int64_t b = 0; b < rows.size(0); ++b)
      std::memcpy(to + (b * capacity + lengths.const_data_ptr<int64_t>()[b]) * row_bytes, from + b * count * row_bytes,
                  static_cast<size_t>(count * row_bytes));
  }
}

at::Tensor CausalLm::logits(const at::Tensor& input_ids) {
  check_ids(input_ids, "input_ids");
  return call({.ids = input_ids}).value;
}

LossSum CausalLm::loss_sum(const at::Tensor& input_ids, const at::Tensor& labels) {
  check_ids(input_ids, "input_ids");
  check_ids(labels, "labels");
  if (input_ids.sizes() != labels.sizes())
    throw DataError(hp::str("labels: ", labels.sizes(), " (allowed: the shape of input_ids, ", input_ids.sizes(), ")"));
  LmOutput output = call({.ids = input_ids, .labels = labels});
  return {std::move(output.value), output.count};
}

KvCache CausalLm::make_cache(int64_t batch, int64_t capacity) {
  KvCache cache;
  cache.keys.resize(static_cast<size_t>(num_layers()));
  cache.values.resize(static_cast<size_t>(num_layers()));
  cache.lengths = at::zeros({batch}, at::kLong);
  cache.capacity = capacity;
  return cache;
}

at::Tensor CausalLm::prefill(const at::Tensor& ids, const at::Tensor& counts, KvCache& cache) {
  at::NoGradGuard no_grad;
  check_ids(ids, "ids");
  HYPER_PARALLEL_CHECK(cache.lengths.eq(0).all().item<bool>(), "prefill: the cache already holds ", cache.lengths.max().item<int64_t>(),
                       " tokens");
  HYPER_PARALLEL_CHECK(ids.size(1) <= cache.capacity, "prefill: ", ids.size(1), " tokens into a cache of ", cache.capacity);
  at::Tensor last = call({.ids = ids, .cache = &cache, .counts = counts}).value;
  cache.lengths.add_(counts);
  return last;
}

at::Tensor CausalLm::decode(const at::Tensor& ids, KvCache& cache) {
  at::NoGradGuard no_grad;
  if (cache.lengths.max().item<int64_t>() >= cache.capacity)
    throw RuntimeError(str("decode: the cache of ", cache.capacity, " positions is full"));
  at::Tensor last = call({.ids = ids.unsqueeze(1), .cache = &cache, .counts = at::ones_like(ids)}).value;
  cache.lengths.add_(1);
  return last;
}

bool register_model(const std::string& type, ModelEntry entry) {
  const bool fresh = registry().emplace(type, std::move(entry)).second;
  HYPER_PARALLEL_CHECK(fresh, "model ", type, " is registered twice");
  return true;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [type, entry] : registry()) names.push_back(type);
  return names;
}

const ModelEntry& model_entry(const std::string& type) {
  const auto found = registry().find(type);
  if (found == registry().end()) throw ConfigError(str("model type \"", type, "\" is unknown (allowed: ", join(model_names(), ", "), ")"));
  return found->second;
}

std::unique_ptr<CausalLm> make_model(const std::string& type, const nlohmann::json& config, const std::string& where) {
  const auto said = config.is_object() ? config.find("model_type") : config.end();
  const bool has_type = config.is_object() && said != config.end();
  if (has_type && !said->is_string()) throw ConfigError(str(where, ": model_type: ", said->dump(), " (allowed: a string)"));
  const std::string named = has_type ? said->get<std::string>() : type;
  if (named.empty()) throw ConfigError(str(where, ": model_type: missing (allowed: ", join(model_names(), ", "), ")"));
  if (!type.empty() && type != named) throw ConfigError(str(where, ": model_type: \"", named, "\", but \"", type, "\" is asked for"));
  if (!registry().contains(named))
    throw ConfigError(str(where, ": model_type: \"", named, "\" is unknown (allowed: ", join(model_names(), ", "), ")"));
  return model_entry(named).factory(config, where);
}

}  // namespace hyper_parallel
