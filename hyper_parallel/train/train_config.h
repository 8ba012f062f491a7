// SPDX-License-Identifier: Apache-2.0
// Everything that a training run can be told, with defaults. docs/configuration.md and `hyper-parallel config schema` are made from it.
//
//   LoadedConfig loaded = load_train_config("configs/tiny_qwen3.yaml", {"training.train_iters=20"});
//   check_train_config(loaded, world_size);     // rules over several keys; ConfigError names the key, the file and the line
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hyper_parallel/base/config.h"
#include "hyper_parallel/base/config_reader.h"

namespace hyper_parallel {

struct LauncherConfig {
  int64_t ranks = 1;
  std::string rank_mode = "threads";
  std::string backend = "gloo";
  int64_t timeout_seconds = 600;
  int64_t threads_per_rank = 0;
  void fields(ConfigVisitor& v);
};

struct ModelConfig {
  std::string type = "qwen3";
  nlohmann::ordered_json config;
  std::optional<std::string> pretrained_path;
  std::string dtype = "float32";
  void fields(ConfigVisitor& v);
};

struct OptimizerConfig {
  std::string type = "adamw";
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  void fields(ConfigVisitor& v);
};

struct LrSchedulerConfig {
  std::string type = "cosine";
  int64_t warmup_iters = 0;
  int64_t decay_iters = 0;
  double min_lr_ratio = 0.1;
  void fields(ConfigVisitor& v);
};

struct TrainingConfig {
  int64_t train_iters = 100;
  std::optional<int64_t> stop_at_step;
  int64_t global_batch_size = 8;
  int64_t micro_batch_size = 1;
  double max_grad_norm = 1.0;
  int64_t seed = 0;
  int64_t eval_steps = 0;
  int64_t eval_iters = 8;
  int64_t logging_steps = 1;
  void fields(ConfigVisitor& v);
};

struct AcceleratorConfig {
  int64_t tp_size = 1, cp_size = 1, ep_size = 1, pp_size = 1;
  bool sequence_parallel = false;
  bool loss_parallel = true;
  void fields(ConfigVisitor& v);
};

// For models and ops of one's own that work on DTensors; the built-in models' strategies move plain tensors.
struct ShardConfig {
  std::vector<std::string> rules;
  std::string implicit_redistribution = "allow";
  std::string on_missing_rule = "error";
  void fields(ConfigVisitor& v);
};

struct FsdpConfig {
  int64_t dp_shard_size = 0;
  int64_t dp_replicate_size = 0;
  bool reshard_after_forward = true;
  int64_t forward_prefetch_depth = 1;
  int64_t backward_prefetch_depth = 1;
  void fields(ConfigVisitor& v);
};

struct DatasetConfig {
  std::vector<std::string> paths;
  std::string tokenizer = "byte";
  int64_t sequence_length = 256;
  std::optional<int64_t> max_bytes;
  double held_out_fraction = 0.0;
  void fields(ConfigVisitor& v);
};

struct CheckpointConfig {
  int64_t save_steps = 0;
  bool save_final = true;
  int64_t keep_last = 0;
  std::optional<std::string> restore_from;
  void fields(ConfigVisitor& v);
};

struct SampleConfig {
  std::optional<std::string> prompt;
  int64_t max_new_tokens = 256;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1.0;
  void fields(ConfigVisitor& v);
};

struct TrainConfig {
  std::string output_dir = "outputs/run";
  LauncherConfig launcher;
  ModelConfig model;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  TrainingConfig training;
  AcceleratorConfig accelerator;
  ShardConfig shard;
  FsdpConfig fsdp_config;
  DatasetConfig dataset;
  CheckpointConfig checkpoint;
  SampleConfig sample;
  void fields(ConfigVisitor& v);
};

struct LoadedConfig {
  ConfigDocument document;
  TrainConfig config;
};

// Reads the file, applies "a.b=value" overrides in order, checks every key alone. Touches no other file.
LoadedConfig load_train_config(const std::string& path, const std::vector<std::string>& overrides);

// Sizes of the data-parallel mesh for a world, with zeros resolved: replicate * shard * tp_size is the world.
struct DataParallelSizes {
  int64_t replicate = 1, shard = 1;
};
DataParallelSizes data_parallel_sizes(const LoadedConfig& loaded, int64_t world_size);

// The rules over several keys: the model's own, batch sizes divide, axes multiply to the world, steps fit, betas are two, features that
// this version lacks.
void check_train_config(const LoadedConfig& loaded, int64_t world_size);

}  // namespace hyper_parallel
