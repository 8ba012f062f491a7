// SPDX-License-Identifier: Apache-2.0
// What the ops on DTensors of one thread (one rank) may do by themselves.
//
//   ShardPolicyGuard strict({.implicit_redistribution = ImplicitRedistribution::kError});   // until the end of the scope
//   at::mm(x, w);   // LayoutError if it would have to move an input first
//
// implicit_redistribution: an op whose inputs don't fit redistributes them (propagate.h says how it chooses).
//   kAllow  (default)
//   kWarn   logs the op, each move and its bytes, once for the same op with the same Specs
//   kError  throws before anything is sent
// Slices of replicated tensors send nothing and are always allowed; so are redistribute() and the collectives of a rule itself (norms).
//
// on_missing_rule: an op without a rule
//   kError      (default) throws LayoutError that names it
//   kReplicate  gathers the inputs, computes on every rank and gives replicated outputs; what it writes to is put back under its own
//               placement. Logs a warning once with the op and the bytes. Still an error: random ops (ranks would draw different values),
//               Partial targets, ops that change their input's shape in place.
//
// Both hold in backward passes too. Every rank must have the same policy.
#pragma once
#include <cstdint>
#include <string>

namespace hyper_parallel {

enum class ImplicitRedistribution : uint8_t { kAllow, kWarn, kError };
enum class MissingRule : uint8_t { kError, kReplicate };

struct ShardPolicy {
  ImplicitRedistribution implicit_redistribution = ImplicitRedistribution::kAllow;
  MissingRule on_missing_rule = MissingRule::kError;
};

// Of the calling thread.
const ShardPolicy& shard_policy();
void set_shard_policy(const ShardPolicy& policy);

class ShardPolicyGuard {
 public:
  explicit ShardPolicyGuard(const ShardPolicy& policy) : before_(shard_policy()) { set_shard_policy(policy); }
  ShardPolicyGuard(const ShardPolicyGuard&) = delete;
  ~ShardPolicyGuard() { set_shard_policy(before_); }

 private:
  ShardPolicy before_;
};

// "allow", "warn", "error"; "error", "replicate". ConfigError lists the allowed words.
ImplicitRedistribution parse_implicit_redistribution(const std::string& text);
MissingRule parse_missing_rule(const std::string& text);

}  // namespace hyper_parallel
