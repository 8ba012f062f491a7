// SPDX-License-Identifier: Apache-2.0
// The one place where a model meets its parallel strategies, in their order: tensor parallelism, FSDP/HSDP units, then the optimizer's view
// of the shards.
//
//   ParallelModel parallel = parallelize(*model, world.group(), {.replicate_size = 1, .shard_size = 4});
//   parallel.engine->materialize({.dtype = at::kFloat, .seed = 1});
//   auto optimizer = make_optimizer("adamw", optimizer_parameters(*parallel.engine), options);
#pragma once
#include <memory>
#include <vector>

#include "hyper_parallel/dtensor/device_mesh.h"
#include "hyper_parallel/fully_shard/fully_shard.h"
#include "hyper_parallel/models/causal_lm.h"
#include "hyper_parallel/optim/optimizer.h"

namespace hyper_parallel {

struct ParallelizeOptions {
  int64_t replicate_size = 1;
  int64_t shard_size = 1;
  int64_t tensor_parallel_size = 1;
  TensorParallelOptions tensor_parallel = {};
  FullyShardOptions fsdp = {};
};

struct ParallelModel {
  DeviceMesh mesh;                     // (replicate, fsdp, tp)
  ProcessGroup data_group;             // ranks that see different data: replicate and fsdp together
  std::unique_ptr<FullyShard> engine;  // refers to the model: end it first
};

// Collective. The model must be on meta. The sizes must multiply to the group's size (LayoutError).
ParallelModel parallelize(CausalLm& model, const ProcessGroup& group, const ParallelizeOptions& options);

// The trainable shards of the engine; they alias its memory.
std::vector<OptimizerParameter> optimizer_parameters(const FullyShard& engine);

}  // namespace hyper_parallel
