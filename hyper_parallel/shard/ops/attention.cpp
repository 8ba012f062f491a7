// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention kernels: batch and heads may be sharded; query positions too on the CPU, where no causal mask ties them to
// their place. query [batch, heads, queries, d], key and value [batch, heads, keys, d], logsumexp [batch, heads, queries].
#include <set>

#include "hyper_parallel/shard/detail/rule_support.h"

namespace hyper_parallel {
namespace {

using namespace detail;

bool is_query(const std::string& name) {
  static const std::set<std::string> names{"query", "out", "grad_out", "grad_out_"};
  return names.count(name) > 0;
}
bool is_key(const std::string& name) { return name == "key" || name == "value"; }
bool is_mask(const std::string& name) { return name == "attn_mask" || name == "attn_bias"; }

struct AttentionFactors {
  int batch, heads, queries;
};

// Masks broadcast to [batch, heads, queries, keys].
void bind_mask(const Shape& sizes, const AttentionFactors& factors, const Factorization& f, std::vector<int>& dims) {
  const int all[] = {factors.batch, factors.heads, factors.queries, kNone};
  for (size_t d = 0; d < sizes.size() && sizes.size() <= 4; ++d) {
    const int factor = all[4 - sizes.size() + d];
    if (factor >= 0 && sizes[d] == f.factors[factor].size) dims[d] = factor;
  }
}

AttentionFactors bind_attention(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  if (call["dropout_p"].toDouble() > 0) call.fail("attention dropout inside a fused kernel draws other values on every rank; set it to 0");
  const Shape &query = call.tensors[call.tensor("query")].sizes, &key = call.tensors[call.tensor("key")].sizes;
  const bool cpu = call.op->schema().name().find("_for_cpu") != std::string::npos;
  AttentionFactors factors{f.add_factor(query[0]), f.add_factor(query[1]), f.add_factor(query[2])};
  f.factors[factors.heads].whole = query[1] != key[1];  // grouped heads
  f.factors[factors.queries].whole = !cpu || call["is_causal"].toBool();
  for (size_t tensor = 0; tensor < call.tensors.size(); ++tensor) {
    if (!call.tensors[tensor].present) continue;
    const std::string& name = call.op->schema().arguments()[call.tensors[tensor].argument].name();
    auto& dims = f.inputs[tensor];
    if (is_query(name))
      dims = {factors.batch, factors.heads, factors.queries, kNone};
    else if (is_key(name))
      dims = {factors.batch, query[1] == key[1] ? factors.heads : kNone, kNone, kNone};
    else if (name == "logsumexp" && dims.size() >= 2) {
      dims[0] = factors.batch;
      dims[1] = factors.heads;
      if (cpu) dims[2] = factors.queries;
    } else if (is_mask(name))
      bind_mask(call.tensors[tensor].sizes, factors, f, dims);
  }
  for (Factor& factor : f.factors) factor.non_empty = true;
  return factors;
}

// -> (output, logsumexp, random state and the like...)
void attention_rule(const OpCall& call, Factorization& f) {
  const AttentionFactors factors = bind_attention(call, f);
  f.outputs.resize(call.num_outputs());
  f.opaque.assign(f.outputs.size(), true);
  f.opaque[0] = f.opaque[1] = false;
  f.outputs[0] = {factors.batch, factors.heads, factors.queries, kNone};
  const bool cpu = f.outputs.size() == 2;
  f.outputs[1] = {factors.batch, factors.heads, cpu ? factors.queries : kNone};
  if (call.op->schema().name().find("cudnn") != std::string::npos) f.outputs[1].push_back(kNone);
  f.deferred = true;
}

// -> gradients of query, key, value (and of the mask, which sums over what it broadcast to)
void attention_backward_rule(const OpCall& call, Factorization& f) {
  const AttentionFactors factors = bind_attention(call, f);
  f.outputs = {f.inputs[call.tensor("query")], f.inputs[call.tensor("key")], f.inputs[call.tensor("value")]};
  f.factors[factors.queries].reduce = ReduceOp::kSum;
  if (call.num_outputs() == 4) {
    const int mask = find_tensor(call, "attn_bias");
    f.outputs.push_back(mask < 0 ? std::vector<int>{} : f.inputs[mask]);
    if (mask >= 0)
      for (Factor& factor : f.factors) factor.reduce = ReduceOp::kSum;
    else
      f.opaque = {false, false, false, true};
  }
  f.deferred = true;
}

HYPER_PARALLEL_OP_RULE("attention", attention_rule);
HYPER_PARALLEL_OP_RULE("attention_backward", attention_backward_rule);

}  // namespace
}  // namespace hyper_parallel
