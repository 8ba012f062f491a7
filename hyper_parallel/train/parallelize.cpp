// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/train/parallelize.h"

namespace hyper_parallel {

ParallelModel parallelize(CausalLm& model, const ProcessGroup& group, const ParallelizeOptions& options) {
  DeviceMesh mesh(group, {options.replicate_size, options.shard_size}, {"replicate", "fsdp"});
  const std::vector<Module*> units = model.shard_units();
  auto engine = std::make_unique<FullyShard>(model.module(), units, mesh, options.fsdp);
  return {std::move(mesh), std::move(engine)};
}

std::vector<OptimizerParameter> optimizer_parameters(const FullyShard& engine) {
  std::vector<OptimizerParameter> views;
  for (ShardedParameter& parameter : engine.parameters()) {
    if (!parameter.trainable) continue;
    views.push_back({.name = std::move(parameter.name),
                     .data = parameter.data,
                     .grad = parameter.grad,
                     .decays = parameter.decays,
                     .sizes = std::move(parameter.sizes),
                     .begin = parameter.begin,
                     .part = std::move(parameter.part)});
  }
  return views;
}

}  // namespace hyper_parallel
