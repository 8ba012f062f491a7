// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/shard/policy.h"

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/log.h"
#include "hyper_parallel/shard/detail/redistribution_policy.h"

namespace hyper_parallel {
namespace {

constinit thread_local ShardPolicy policy_of_thread;

std::string moves_of(const detail::OpInfo& info, const Propagation& propagation) {
  std::string text;
  const auto add = [&](int argument, int list_index, const RedistributePlan& plan) {
    text += str("\n  ", info.op.schema().arguments()[argument].name(), list_index >= 0 ? str("[", list_index, "]") : "", ": ",
                plan.from()->to_string(), " to ", to_string(plan.to()->placements()), " by ", plan.to_string(), ", ", plan.bytes_sent(),
                " bytes");
  };
  for (const InputPlan& plan : propagation.plans)
    if (plan.plan != nullptr && plan.plan->bytes_sent() > 0) add(plan.argument, plan.list_index, *plan.plan);
  if (propagation.reduce_target) add(info.written, -1, *propagation.reduce_target);
  return text;
}

}  // namespace

const ShardPolicy& shard_policy() { return policy_of_thread; }
void set_shard_policy(const ShardPolicy& policy) { policy_of_thread = policy; }

ImplicitRedistribution parse_implicit_redistribution(const std::string& text) {
  if (text == "allow") return ImplicitRedistribution::kAllow;
  if (text == "warn") return ImplicitRedistribution::kWarn;
  if (text == "error") return ImplicitRedistribution::kError;
  throw ConfigError(str("implicit_redistribution: \"", text, "\" (allowed: allow, warn, error)"));
}

MissingRule parse_missing_rule(const std::string& text) {
  if (text == "error") return MissingRule::kError;
  if (text == "replicate") return MissingRule::kReplicate;
  throw ConfigError(str("on_missing_rule: \"", text, "\" (allowed: error, replicate)"));
}

namespace detail {

void check_redistribution(const OpInfo& info, const Propagation& propagation) {
  const ImplicitRedistribution allowed = policy_of_thread.implicit_redistribution;
  if (C10_LIKELY(allowed == ImplicitRedistribution::kAllow)) return;
  if (allowed == ImplicitRedistribution::kError)
    throw LayoutError(str(info.row->op, ": the inputs would have to be redistributed, which implicit_redistribution: error forbids",
                          moves_of(info, propagation)));
  if (propagation.warned) return;
  propagation.warned = true;
  for (int axis = 0; axis < propagation.mesh->num_axes(); ++axis)
    if (propagation.mesh->coordinate(axis) != 0) return;
  log_warning(info.row->op, ": redistributes its inputs", moves_of(info, propagation));
}

}  // namespace detail
}  // namespace hyper_parallel
