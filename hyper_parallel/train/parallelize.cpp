// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/train/parallelize.h"

namespace hyper_parallel {

ParallelModel parallelize(CausalLm& model, const ProcessGroup& group, const ParallelizeOptions& options) {
  const DeviceMesh mesh(group, {options.replicate_size, options.shard_size, options.tensor_parallel_size}, {"replicate", "fsdp", "tp"});
  const std::vector<std::string> data_axes{"replicate", "fsdp"};
  ProcessGroup data_group = group;
  FullyShardOptions fsdp = options.fsdp;
  if (options.tensor_parallel_size > 1) {
    data_group = mesh.flatten(data_axes, "dp").group();
    TensorParallel tp = parallelize_module(model.module(), mesh["tp"], model.tensor_parallel_plan(options.tensor_parallel));
    fsdp.sharing = std::move(tp.sharing);
    fsdp.model_group = std::move(tp.group);
  }
  const std::vector<Module*> units = model.shard_units();
  auto engine = std::make_unique<FullyShard>(model.module(), units, mesh.slice(data_axes), fsdp);
  return {mesh, std::move(data_group), std::move(engine)};
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
