// SPDX-License-Identifier: Apache-2.0
// A training run from its configuration: model, data, sharding, optimizer, schedule, metrics, checkpoints, and a sample at the end.
//
//   run_threads(2, [&](World& world) { Trainer(world, loaded).run(); });
//
// Writes into output_dir: config.yaml (resolved), metrics.jsonl, TensorBoard events, checkpoints/step-NNNNNN and checkpoints/LATEST.
// A run that is stopped and resumed on the same layout equals the uninterrupted one bit for bit. Construction and run() are collective.
// A NaN or infinite loss or norm stops all ranks (RuntimeError: step, rank, samples); SIGINT and SIGTERM end the run after the step, saved.
#pragma once
#include <memory>
#include <string>

#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/train/train_config.h"

namespace hyper_parallel {

class Trainer {
 public:
  // Reads data and model, shards, restores. The loaded configuration must have passed check_train_config for this world.
  Trainer(const World& world, const LoadedConfig& loaded);
  ~Trainer();
  // 0: finished. Else the signal that ended the run, the same on all ranks.
  int run();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hyper_parallel
