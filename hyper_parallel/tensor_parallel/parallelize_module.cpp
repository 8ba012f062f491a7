// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/tensor_parallel/parallelize_module.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/tensor_parallel/detail/hooks.h"

namespace hyper_parallel {
namespace {

std::string some_names(Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, child] : module.find("**")) names.push_back(name);
  const size_t shown = std::min<size_t>(names.size(), 12);
  const std::string rest = shown < names.size() ? str(", and ", names.size() - shown, " more") : "";
  return join(std::span(names).first(shown), ", ") + rest;
}

std::vector<std::pair<std::string, Module*>> targets_of(Module& module, const std::string& name) {
  if (name.empty()) return {{"", &module}};
  auto found = module.find(name);
  if (found.empty()) throw LayoutError(str("parallelize_module: no module is named \"", name, "\" (there are: ", some_names(module), ")"));
  return found;
}

struct ForgetHook : detail::RegionHook {
  using RegionHook::RegionHook;
  void post_forward(Module&, TensorRefs) override { region->forget(); }
};

void check_on_meta(Module& module) {
  for (const auto& [name, parameter] : module.named_parameters())
    if (parameter->tensor.defined() && !parameter->tensor.is_meta())
      throw LayoutError(str("parallelize_module: ", name, " has its values already; parallelize a module before materialize()"));
}

}  // namespace

TensorParallel parallelize_module(Module& module, const DeviceMesh& mesh, const ParallelPlan& plan) {
  check_on_meta(module);
  const auto region = std::make_shared<ParallelRegion>(mesh);
  for (const PlanEntry& entry : plan)
    for (const auto& [name, target] : targets_of(module, entry.name)) entry.style->apply({*target, name, region});
  module.add_outer_hook(std::make_shared<ForgetHook>(StyleTarget{module, "", region}));
  TensorParallel result{region->group(), region->sharing(), {}};
  for (const auto& [name, parameter] : module.named_parameters()) {
    const ParameterSharing whole{.in_common = true, .counted = region->rank() == 0};
    if (result.sharing.try_emplace(parameter, whole).first->second.sum_gradients) result.with_terms.push_back(parameter);
  }
  return result;
}

void TensorParallel::sum_gradients() const {
  std::vector<std::pair<ProcessGroup, std::vector<at::Tensor>>> by_group;
  for (Parameter* parameter : with_terms) {
    if (!parameter->trainable) continue;
    const ProcessGroup& ranks = sharing.at(parameter).sum_gradients;
    auto found = std::find_if(by_group.begin(), by_group.end(), [&](const auto& entry) { return entry.first == ranks; });
    if (found == by_group.end()) found = by_group.insert(by_group.end(), {ranks, {}});
    at::Tensor& gradient = parameter->tensor.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameter->tensor.detach());
    found->second.push_back(gradient);
  }
  for (const auto& [group, gradients] : by_group) group.all_reduce(gradients).wait();
}

}  // namespace hyper_parallel
