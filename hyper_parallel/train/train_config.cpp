// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/train/train_config.h"

#include "hyper_parallel/data/tokenizer.h"
#include "hyper_parallel/models/causal_lm.h"
#include "hyper_parallel/optim/lr_schedule.h"
#include "hyper_parallel/optim/optimizer.h"
#include "hyper_parallel/train/model_folder.h"

namespace hyper_parallel {
namespace {

template <class Infos>
std::vector<std::string> names_of(const Infos& infos) {
  std::vector<std::string> names;
  for (const auto& info : infos) names.push_back(info.name);
  return names;
}

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t i = 1; i <= number; ++i)
    if (number % i == 0) found.push_back(i);
  return found;
}

std::string listed(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

void check_batches(const LoadedConfig& loaded, int64_t num_data_ranks) {
  const TrainingConfig& training = loaded.config.training;
  const int64_t per_step = training.micro_batch_size * num_data_ranks;
  if (training.global_batch_size % per_step != 0)
    throw loaded.document.error("training.global_batch_size",
                                str(training.global_batch_size, " is not a multiple of micro_batch_size * data-parallel ranks = ",
                                    training.micro_batch_size, " * ", num_data_ranks, " = ", per_step));
}

void check_steps(const LoadedConfig& loaded) {
  const TrainConfig& config = loaded.config;
  const int64_t steps = config.training.train_iters;
  if (config.training.stop_at_step.value_or(0) > steps)
    throw loaded.document.error("training.stop_at_step", str(*config.training.stop_at_step, " is beyond training.train_iters=", steps));
  if (config.lr_scheduler.warmup_iters > steps)
    throw loaded.document.error("lr_scheduler.warmup_iters",
                                str(config.lr_scheduler.warmup_iters, " is beyond training.train_iters=", steps));
  if (config.lr_scheduler.decay_iters > 0 && config.lr_scheduler.type != "wsd")
    throw loaded.document.error("lr_scheduler.decay_iters",
                                str(config.lr_scheduler.decay_iters, " is for type wsd alone, not ", config.lr_scheduler.type));
  if (config.lr_scheduler.warmup_iters + config.lr_scheduler.decay_iters > steps)
    throw loaded.document.error("lr_scheduler.decay_iters",
                                str("warmup_iters + decay_iters = ", config.lr_scheduler.warmup_iters + config.lr_scheduler.decay_iters,
                                    " is beyond training.train_iters=", steps));
  if (config.lr_scheduler.type == "wsd" && config.lr_scheduler.warmup_iters >= steps)
    throw loaded.document.error("lr_scheduler.warmup_iters", "wsd needs at least one step of decay after the warm-up");
  if (config.training.eval_steps > 0 && config.dataset.held_out_fraction == 0)
    throw loaded.document.error("training.eval_steps", "evaluation needs dataset.held_out_fraction > 0");
}

void check_model(const LoadedConfig& loaded) {
  const DatasetConfig& dataset = loaded.config.dataset;
  const auto model = model_from_config(loaded);
  const auto tokenizer = make_tokenizer(dataset.tokenizer);
  const int64_t num_tokens = tokenizer->vocab_size();
  if (model->vocab_size() < num_tokens)
    throw loaded.document.error("model.config.vocab_size", str(model->vocab_size(), " is less than the ", num_tokens, " tokens of the ",
                                                               dataset.tokenizer, " tokenizer"));
  if (model->max_positions() < dataset.sequence_length)
    throw loaded.document.error("dataset.sequence_length",
                                str(dataset.sequence_length, " is beyond the model's max_position_embeddings=", model->max_positions()));
  const SampleConfig& sample = loaded.config.sample;
  if (!sample.prompt) return;
  const auto num_prompt_tokens = static_cast<int64_t>(tokenizer->encode(*sample.prompt).size());
  const int64_t most = model->max_positions() - num_prompt_tokens;
  if (num_prompt_tokens == 0) throw loaded.document.error("sample.prompt", "is empty (null: no sample)");
  if (sample.max_new_tokens > most)
    throw loaded.document.error("sample.max_new_tokens",
                                str(sample.max_new_tokens, " is too many: the prompt has ", num_prompt_tokens, " tokens, the model ",
                                    model->max_positions(), " positions (allowed: 1 to ", most, ")"));
}

void check_single(const LoadedConfig& loaded, const char* key, int64_t value) {
  if (value != 1)
    throw loaded.document.error(str("accelerator.", key),
                                str(value, " is not available in this version (allowed: 1); use fsdp_config to split the model"));
}

void check_divides(const LoadedConfig& loaded, const char* key, int64_t value, int64_t num_ranks) {
  if (value == 0 || num_ranks % value == 0) return;
  throw loaded.document.error(str("fsdp_config.", key), str(value, " does not divide the ", num_ranks,
                                                            " ranks left after tp_size=", loaded.config.accelerator.tp_size,
                                                            ", pp_size=1 (allowed: ", listed(divisors(num_ranks)), ")"));
}

}  // namespace

void LauncherConfig::fields(ConfigVisitor& v) {
  v.field("ranks", ranks,
          {.doc = "Ranks that `hyper-parallel train` starts itself; ignored under torchrun, srun or mpirun.", .min = 1, .max = 4096});
  v.field("rank_mode", rank_mode, {.doc = "Ranks as threads of one process, or as local processes.", .allowed = {"threads", "processes"}});
  v.field("backend", backend, {.doc = "Collectives between processes; threads always use the thread backend.", .allowed = {"gloo"}});
  v.field("timeout_seconds", timeout_seconds, {.doc = "A collective that takes longer ends the run and names who is missing.", .min = 1});
  v.field("threads_per_rank", threads_per_rank,
          {.doc = "Compute threads of a rank; 0: cores divided by the ranks on this host.", .min = 0});
}

void ModelConfig::fields(ConfigVisitor& v) {
  v.field("type", type,
          {.doc = "Model architecture; ignored with `pretrained_path`, whose config.json says it.", .allowed = model_names()});
  v.field("config", config, {.doc = "Keys of a Hugging Face config.json; with `pretrained_path` they override the folder's."});
  v.field("pretrained_path", pretrained_path, {.doc = "Hugging Face folder (config.json and safetensors) to start from."});
  v.field("dtype", dtype, {.doc = "Type of weights and arithmetic.", .allowed = {"float32", "float64"}});
}

void OptimizerConfig::fields(ConfigVisitor& v) {
  v.field("type", type, {.doc = "Optimizer.", .allowed = names_of(registered_optimizers())});
  v.field("lr", lr, {.doc = "Peak learning rate.", .min = 0});
  v.field("betas", betas, {.doc = "Decay rates of the two moments.", .min = 0, .max = 0.999999999});
  v.field("eps", eps, {.doc = "Added to the root of the second moment.", .min = 0, .above_min = true});
  v.field("weight_decay", weight_decay, {.doc = "Decoupled weight decay; norms and biases take none.", .min = 0});
}

void LrSchedulerConfig::fields(ConfigVisitor& v) {
  v.field("type", type, {.doc = "Shape after the warm-up.", .allowed = names_of(registered_lr_schedules())});
  v.field("warmup_iters", warmup_iters, {.doc = "Steps of linear warm-up.", .min = 0});
  v.field("decay_iters", decay_iters, {.doc = "Length of the final decay of `wsd`; 0: a tenth of training.train_iters.", .min = 0});
  v.field("min_lr_ratio", min_lr_ratio, {.doc = "Final learning rate over the peak.", .min = 0, .max = 1});
}

void TrainingConfig::fields(ConfigVisitor& v) {
  v.field("train_iters", train_iters, {.doc = "Optimizer steps; the length of the learning-rate schedule.", .min = 1});
  v.field("stop_at_step", stop_at_step, {.doc = "End after this step, with schedules as for the full length.", .min = 1});
  v.field("global_batch_size", global_batch_size, {.doc = "Sequences a step over all ranks.", .min = 1});
  v.field("micro_batch_size", micro_batch_size, {.doc = "Sequences a rank holds at once; the rest is gradient accumulation.", .min = 1});
  v.field("max_grad_norm", max_grad_norm, {.doc = "Clip gradients to this global 2-norm; 0: no clipping.", .min = 0});
  v.field("seed", seed, {.doc = "Of initial weights, data order and sampling.", .min = 0});
  v.field("eval_steps", eval_steps, {.doc = "Evaluate on the held-out part every so many steps; 0: never.", .min = 0});
  v.field("eval_iters", eval_iters, {.doc = "Global batches of one evaluation.", .min = 1});
  v.field("logging_steps", logging_steps, {.doc = "Print a line every so many steps where the output is not a terminal.", .min = 1});
}

void AcceleratorConfig::fields(ConfigVisitor& v) {
  v.field("tp_size", tp_size, {.doc = "Ranks that share out each layer (tensor parallelism); heads and sizes need not divide.", .min = 1});
  v.field("cp_size", cp_size, {.doc = "Context-parallel ranks; this version: 1.", .min = 1});
  v.field("ep_size", ep_size, {.doc = "Expert-parallel ranks; this version: 1.", .min = 1});
  v.field("pp_size", pp_size, {.doc = "Pipeline stages; this version: 1.", .min = 1});
  v.field("sequence_parallel", sequence_parallel,
          {.doc = "With tp_size: between blocks activations are split along the sequence instead of being whole on every rank."});
  v.field("loss_parallel", loss_parallel,
          {.doc = "With tp_size: the loss is computed from split logits; false gathers whole rows of logits on every rank."});
}

void ShardConfig::fields(ConfigVisitor& v) {
  v.field("rules", rules, {.doc = "YAML files with rules for ops of your own (docs/adding_an_op.md)."});
  v.field("implicit_redistribution", implicit_redistribution,
          {.doc = "An op on DTensors whose inputs don't fit: move them, warn once, or stop.", .allowed = {"allow", "warn", "error"}});
  v.field("on_missing_rule", on_missing_rule,
          {.doc = "An op on DTensors without a rule: stop, or compute on gathered inputs.", .allowed = {"error", "replicate"}});
}

void FsdpConfig::fields(ConfigVisitor& v) {
  v.field("dp_shard_size", dp_shard_size,
          {.doc = "Ranks that share one copy of the model; 0: all that dp_replicate_size leaves.", .min = 0});
  v.field("dp_replicate_size", dp_replicate_size,
          {.doc = "Copies of the model (HSDP; with dp_shard_size 1 plain data parallelism); 0: what dp_shard_size leaves.", .min = 0});
  v.field("reshard_after_forward", reshard_after_forward,
          {.doc = "Free a unit's weights after its forward and gather them again for backward."});
  v.field("forward_prefetch_depth", forward_prefetch_depth, {.doc = "Units gathered ahead in forward.", .min = 0, .max = 16});
  v.field("backward_prefetch_depth", backward_prefetch_depth, {.doc = "Units gathered ahead in backward.", .min = 0, .max = 16});
}

void DatasetConfig::fields(ConfigVisitor& v) {
  v.field("paths", paths, {.doc = "Text files or globs (`.gz` and `.dz` are unpacked).", .required = true});
  v.field("tokenizer", tokenizer, {.doc = "Tokenizer.", .allowed = tokenizer_names()});
  v.field("sequence_length", sequence_length, {.doc = "Tokens of a training sequence.", .min = 1});
  v.field("max_bytes", max_bytes, {.doc = "Read at most this many bytes of text.", .min = 1});
  v.field("held_out_fraction", held_out_fraction, {.doc = "Part of the sequences kept for evaluation.", .min = 0, .max = 0.5});
}

void CheckpointConfig::fields(ConfigVisitor& v) {
  v.field("save_steps", save_steps, {.doc = "Save every so many steps; 0: only at the end.", .min = 0});
  v.field("save_final", save_final, {.doc = "Save when the run ends."});
  v.field("keep_last", keep_last, {.doc = "Keep only the newest checkpoints; 0: keep all.", .min = 0});
  v.field("restore_from", restore_from, {.doc = "Checkpoint folder to resume from, or LATEST: the newest of output_dir, if there is one."});
}

void SampleConfig::fields(ConfigVisitor& v) {
  v.field("prompt", prompt, {.doc = "Text to continue when training ends; null: no sample."});
  v.field("max_new_tokens", max_new_tokens, {.doc = "Tokens to generate.", .min = 1});
  v.field("temperature", temperature, {.doc = "Sampling temperature; 0: greedy.", .min = 0});
  v.field("top_k", top_k, {.doc = "Sample among the k likeliest tokens; 0: all.", .min = 0});
  v.field("top_p", top_p, {.doc = "Sample among the likeliest tokens that hold this probability.", .min = 0, .max = 1, .above_min = true});
}

void TrainConfig::fields(ConfigVisitor& v) {
  v.field("output_dir", output_dir, {.doc = "Folder for config.yaml, metrics.jsonl, TensorBoard events and checkpoints/."});
  v.section("launcher", launcher, "Who the ranks are.");
  v.section("model", model, "What to train.");
  v.section("optimizer", optimizer, "How weights move.");
  v.section("lr_scheduler", lr_scheduler, "The learning rate as a function of the step.");
  v.section("training", training, "Steps, batches and evaluation.");
  v.section("accelerator", accelerator, "Degrees of model parallelism.");
  v.section("shard", shard, "Ops on DTensors, in models of your own.");
  v.section("fsdp_config", fsdp_config, "Data parallelism with sharded parameters, gradients and optimizer state.");
  v.section("dataset", dataset, "Where the text comes from.");
  v.section("checkpoint", checkpoint, "Saving and resuming.");
  v.section("sample", sample, "Text to generate when training ends.");
}

LoadedConfig load_train_config(const std::string& path, const std::vector<std::string>& overrides) {
  LoadedConfig loaded{ConfigDocument::load(path), {}};
  for (const std::string& assignment : overrides) loaded.document.override_value(assignment);
  loaded.config = read_config<TrainConfig>(loaded.document);
  return loaded;
}

DataParallelSizes data_parallel_sizes(const LoadedConfig& loaded, int64_t world_size) {
  const FsdpConfig& fsdp = loaded.config.fsdp_config;
  const int64_t tp_size = loaded.config.accelerator.tp_size;
  if (world_size % tp_size != 0)
    throw loaded.document.error("accelerator.tp_size",
                                str(tp_size, " does not divide the ", world_size, " ranks (allowed: ", listed(divisors(world_size)), ")"));
  world_size /= tp_size;
  check_divides(loaded, "dp_shard_size", fsdp.dp_shard_size, world_size);
  check_divides(loaded, "dp_replicate_size", fsdp.dp_replicate_size, world_size);
  if (fsdp.dp_shard_size == 0) {
    const int64_t replicate = std::max<int64_t>(1, fsdp.dp_replicate_size);
    return {replicate, world_size / replicate};
  }
  const int64_t left = world_size / fsdp.dp_shard_size;
  if (fsdp.dp_replicate_size != 0 && fsdp.dp_replicate_size != left)
    throw loaded.document.error(
        "fsdp_config.dp_replicate_size",
        str(fsdp.dp_replicate_size, " * dp_shard_size=", fsdp.dp_shard_size, " is not the ", world_size, " ranks",
            tp_size > 1 ? str(" left after tp_size=", tp_size) : std::string(), " (allowed: ", left, ", or 0 for that)"));
  return {left, fsdp.dp_shard_size};
}

void check_train_config(const LoadedConfig& loaded, int64_t world_size) {
  const TrainConfig& config = loaded.config;
  check_single(loaded, "cp_size", config.accelerator.cp_size);
  check_single(loaded, "ep_size", config.accelerator.ep_size);
  check_single(loaded, "pp_size", config.accelerator.pp_size);
  const DataParallelSizes sizes = data_parallel_sizes(loaded, world_size);
  if (config.accelerator.sequence_parallel && config.accelerator.tp_size == 1)
    throw loaded.document.error("accelerator.sequence_parallel", "true without tensor parallelism (allowed: false, or tp_size above 1)");
  check_batches(loaded, sizes.replicate * sizes.shard);
  check_steps(loaded);
  if (config.optimizer.betas.size() != 2)
    throw loaded.document.error("optimizer.betas", str("expected two numbers, got ", config.optimizer.betas.size()));
  if (config.dataset.paths.empty()) throw loaded.document.error("dataset.paths", "expected at least one file or glob");
  check_model(loaded);
}

}  // namespace hyper_parallel
