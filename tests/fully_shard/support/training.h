// SPDX-License-Identifier: Apache-2.0
// Three steps of the tiny model under FullyShard and by plain autograd on one rank, as the same record.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/fully_shard/fully_shard.h"
#include "tests/fully_shard/support/tiny_model.h"

namespace hyper_parallel::testing_support {

using Named = std::map<std::string, at::Tensor>;

struct Record {
  double loss, norm;
  Named grads, weights;  // whole, before and after the update
};

struct Case {
  std::vector<int64_t> mesh{1};  // (shard) or (replicate, shard)
  int num_microbatches = 1;
  at::ScalarType dtype = at::kDouble;
  TinyOptions model;
  FullyShardOptions options;
  bool uneven_use = false;     // rank 1 leaves block 2's shift unused
  bool reduce_always = false;  // in every microbatch
  int num_ranks() const;
};

constexpr int kNumSteps = 3;

DeviceMesh mesh_of(World& world, const std::vector<int64_t>& shape);
// Plain leaves, a backward for each rank's samples one after another.
std::vector<Record> plain(const Case& run);
// Collective. Trains `engine`, attached to `model`, from its current weights.
std::vector<Record> sharded(World& world, const DeviceMesh& mesh, const Case& run, TinyModel& model, FullyShard& engine);
// Forward and backward of all of this rank's microbatches; returns this rank's part of the loss. Ends with finish_backward().
double backward_all(World& world, const Case& run, TinyModel& model, FullyShard& engine, int step);
// Whole tensors from the ranges of all ranks.
Named whole(const DeviceMesh& mesh, const std::vector<ShardedParameter>& parameters, bool grads);
void update(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& grads, std::vector<at::Tensor>& states, int step);

// Largest |got - want| / (1 + |want|) over all tensors; infinite if names differ.
double difference(const Named& got, const Named& want);

}  // namespace hyper_parallel::testing_support
