// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/tensor_parallel/parallelize_module.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "hyper_parallel/base/error.h"

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

}  // namespace

TensorParallel parallelize_module(Module& module, const DeviceMesh& mesh, const ParallelPlan& plan) {
  const auto region = std::make_shared<ParallelRegion>(mesh);
  for (const PlanEntry& entry : plan)
    for (const auto& [name, target] : targets_of(module, entry.name)) entry.style->apply({*target, name, region});
  TensorParallel result{region->group(), region->sharing()};
  for (const auto& [name, parameter] : module.named_parameters())
    result.sharing.try_emplace(parameter, ParameterSharing{.in_common = true, .counted = region->rank() == 0});
  return result;
}

void TensorParallel::sum_gradients() const {
  std::vector<std::pair<ProcessGroup, std::vector<at::Tensor>>> by_group;
  for (const auto& [parameter, shared] : sharing) {
    if (!shared.sum_gradients || !parameter->trainable) continue;
    const auto same = [&](const auto& entry) { return entry.first == shared.sum_gradients; };
    auto found = std::find_if(by_group.begin(), by_group.end(), same);
    if (found == by_group.end()) found = by_group.insert(by_group.end(), {shared.sum_gradients, {}});
    at::Tensor& gradient = parameter->tensor.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameter->tensor.detach());
    found->second.push_back(gradient);
  }
  for (const auto& [group, gradients] : by_group) group.all_reduce(gradients).wait();
}

}  // namespace hyper_parallel
