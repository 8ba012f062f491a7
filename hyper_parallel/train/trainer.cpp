// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/train/trainer.h"

#include <ATen/Parallel.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "hyper_parallel/base/config_writer.h"
#include "hyper_parallel/base/log.h"
#include "hyper_parallel/collectives/launcher.h"
#include "hyper_parallel/collectives/progress_note.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"
#include "hyper_parallel/dtensor/random.h"
#include "hyper_parallel/models/weights.h"
#include "hyper_parallel/optim/lr_schedule.h"
#include "hyper_parallel/shard/policy.h"
#include "hyper_parallel/shard/rules.h"
#include "hyper_parallel/train/metrics.h"
#include "hyper_parallel/train/model_folder.h"
#include "hyper_parallel/train/parallelize.h"
#include "hyper_parallel/train/train_data.h"
#include "hyper_parallel/train/train_step.h"

namespace hyper_parallel {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

at::ScalarType dtype_of(const ModelConfig& config) { return config.dtype == "float64" ? at::kDouble : at::kFloat; }

ParallelizeOptions parallelize_options(const LoadedConfig& loaded, int64_t world_size) {
  const DataParallelSizes sizes = data_parallel_sizes(loaded, world_size);
  const FsdpConfig& fsdp = loaded.config.fsdp_config;
  const AcceleratorConfig& accelerator = loaded.config.accelerator;
  return {.replicate_size = sizes.replicate,
          .shard_size = sizes.shard,
          .tensor_parallel_size = accelerator.tp_size,
          .tensor_parallel = {.sequence_parallel = accelerator.sequence_parallel, .loss_parallel = accelerator.loss_parallel},
          .fsdp = {.reshard_after_forward = fsdp.reshard_after_forward,
                   .forward_prefetch_depth = static_cast<int>(fsdp.forward_prefetch_depth),
                   .backward_prefetch_depth = static_cast<int>(fsdp.backward_prefetch_depth)}};
}

LrScheduleOptions schedule_options(const TrainConfig& config) {
  const LrSchedulerConfig& scheduler = config.lr_scheduler;
  const int64_t steps = config.training.train_iters;
  const int64_t most_decay = std::max<int64_t>(1, steps - scheduler.warmup_iters);
  return {.name = scheduler.type,
          .learning_rate = config.optimizer.lr,
          .min_learning_rate = config.optimizer.lr * scheduler.min_lr_ratio,
          .num_warmup_steps = scheduler.warmup_iters,
          .num_steps = steps,
          .num_decay_steps = scheduler.type != "wsd"     ? 0
                             : scheduler.decay_iters > 0 ? scheduler.decay_iters
                                                         : std::clamp<int64_t>(steps / 10, 1, most_decay)};
}

// Before the model is made, which may use its ops.
ShardPolicy load_shard_config(const ShardConfig& config) {
  for (const std::string& path : config.rules) load_rules(path);
  return {parse_implicit_redistribution(config.implicit_redistribution), parse_missing_rule(config.on_missing_rule)};
}

double unsigned_nan(double value) { return std::isnan(value) ? std::abs(value) : value; }  // prints as nan, not -nan

void append(StateDict& into, StateDict from) {
  for (StateEntry& entry : from) into.push_back(std::move(entry));
}

}  // namespace

class Trainer::Impl {
 public:
  Impl(const World& world, const LoadedConfig& loaded)
      : world_(world),
        config_(loaded.config),
        group_(world.group()),
        policy_(load_shard_config(config_.shard)),
        model_(model_from_config(loaded)),
        parallel_(parallelize(*model_, group_, parallelize_options(loaded, world.size()))),
        data_(loaded, parallel_.data_group),
        schedule_(schedule_options(config_)) {
    set_threads();
    FullyShard& engine = *parallel_.engine;
    engine.materialize({.dtype = dtype_of(config_.model), .seed = static_cast<uint64_t>(config_.training.seed)});
    if (config_.model.pretrained_path) load_weights(engine.state_dict(), *config_.model.pretrained_path, model_->module().tied_names());
    optimizer_ = make_optimizer(config_.optimizer.type, optimizer_parameters(engine),
                                {.betas = {config_.optimizer.betas[0], config_.optimizer.betas[1]},
                                 .epsilon = config_.optimizer.eps,
                                 .weight_decay = config_.optimizer.weight_decay});
    step_ = std::make_unique<TrainStep>(*model_, engine, *optimizer_, parallel_.data_group, config_.training.max_grad_norm);
    restore();
    if (is_first()) open_output();
  }

  int run() {
    const int64_t last = last_step();
    while (steps_done_ < last) {
      one_step();
      const int signal = agree_on_signal(group_);
      const bool due = config_.checkpoint.save_steps > 0 && steps_done_ % config_.checkpoint.save_steps == 0;
      if (due || ((signal != 0 || steps_done_ == last) && config_.checkpoint.save_final)) save();
      if (signal == 0) continue;
      finish_output();
      if (is_first())
        log_warning("interrupted after step ", steps_done_,
                    config_.checkpoint.save_final ? "; resume with --checkpoint.restore_from=LATEST" : "");
      return signal;
    }
    if (steps_done_ != saved_step_ && config_.checkpoint.save_final) save();  // restored from elsewhere, with no step left to do
    finish_output();
    return config_.sample.prompt ? sample() : 0;
  }

 private:
  bool is_first() const { return world_.rank() == 0; }
  int64_t last_step() const {
    return std::min(config_.training.train_iters, config_.training.stop_at_step.value_or(config_.training.train_iters));
  }
  std::filesystem::path checkpoints() const { return std::filesystem::path(config_.output_dir) / "checkpoints"; }

  void set_threads() const {
    int64_t count = config_.launcher.threads_per_rank;
    if (count == 0 && std::string_view(group_.backend_name()) == "thread" && std::getenv("OMP_NUM_THREADS") == nullptr)
      count = std::max<int64_t>(1, std::thread::hardware_concurrency() / world_.local_size());  // of processes World has set it
    if (count > 0) at::set_num_threads(static_cast<int>(count));
  }

  void open_output() {
    metrics_ = std::make_unique<MetricsLog>(
        config_.output_dir,
        MetricsOptions{.num_steps = last_step(), .logging_steps = config_.training.logging_steps, .resume_step = steps_done_});
    if (steps_done_ == 0 && !list_checkpoints(checkpoints()).empty())
      log_warning(checkpoints().string(), " holds checkpoints of an earlier run; metrics.jsonl starts anew",
                  " (--checkpoint.restore_from=LATEST would go on from them)");
    std::ofstream yaml(std::filesystem::path(config_.output_dir) / "config.yaml");
    if (!(yaml << config_yaml(config_) << std::flush)) throw RuntimeError(str("cannot write ", config_.output_dir, "/config.yaml"));
    int64_t num_parameters = 0;
    for (const auto& [name, slot] : model_->module().named_parameters()) num_parameters += slot->numel();
    log_info(num_parameters, " parameters on ", world_.size(), " ranks ", parallel_.mesh.to_string(), ", backend ", group_.backend_name(),
             ", ", data_.describe());
  }

  void finish_output() {
    if (metrics_) metrics_->finish();
  }

  void one_step() {
    const auto start = Clock::now();
    const int64_t step = steps_done_ + 1;
    note_step(step);
    const StepBatch batch = data_.next();
    const double lr = schedule_(step);
    const StepResult result = step_->accumulate(batch.micro_batches);
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) fail_not_finite(step, result, batch);
    step_->update(result, lr);
    steps_done_ = step;
    StepMetrics metrics{.step = step, .loss = result.loss, .grad_norm = result.grad_norm, .lr = lr, .tokens = result.tokens};
    metrics.step_seconds = seconds_since(start);
    if (config_.training.eval_steps > 0 && step % config_.training.eval_steps == 0) metrics.val_loss = evaluate();
    if (metrics_) metrics_->step(metrics);
  }

  double evaluate() {
    const std::vector<MicroBatch> batches = data_.held_out(config_.training.eval_iters);
    return step_->evaluate(batches).loss;
  }

  // Every rank learns every rank's samples and whether its own loss was finite, so all throw the same error.
  [[noreturn]] void fail_not_finite(int64_t step, const StepResult& result, const StepBatch& batch) {
    finish_output();
    std::vector<int64_t> mine = batch.samples;
    mine.push_back(std::isfinite(result.local_loss_sum) ? 0 : 1);
    const at::Tensor input = at::tensor(mine, at::kLong);
    const at::Tensor all = at::empty({world_.size(), input.numel()}, at::kLong);
    group_.all_gather(all, input).wait();
    std::string culprits;
    for (int64_t rank = 0; rank < world_.size(); ++rank) {
      const int64_t* row = all.data_ptr<int64_t>() + rank * input.numel();
      if (row[input.numel() - 1] == 0 && std::isfinite(result.loss)) {
        culprits += str("\n  rank ", rank, ": loss finite, samples ", std::span(row, batch.samples.size()));
      } else if (row[input.numel() - 1] != 0) {
        culprits += str("\n  rank ", rank, ": loss not finite, samples ", std::span(row, batch.samples.size()));
      }
    }
    throw RuntimeError(str("step ", step, ": loss ", unsigned_nan(result.loss), ", gradient norm ", unsigned_nan(result.grad_norm),
                           "; weights are as after step ", step - 1, culprits));
  }

  // A signal may have reached some ranks only, or not yet all.
  static int agree_on_signal(const ProcessGroup& group) {
    const at::Tensor signal = at::scalar_tensor(interrupt_signal(), at::kInt);
    group.all_reduce(signal, ReduceOp::kMax).wait();
    return signal.item<int>();
  }

  CheckpointState state() {
    CheckpointState all{parallel_.engine->state_dict(), {}};
    append(all.tensors, optimizer_->state_dict());
    all.extra = {{"step", steps_done_},
                 {"cursor", data_.cursor()},
                 {"seed", config_.training.seed},
                 {"model", model_->config()},
                 {"tokenizer", config_.dataset.tokenizer},
                 {"schedule", schedule_description()},
                 {"random", {{"seed", random_state().seed}, {"counter", random_state().counter}}}};
    return all;
  }

  // What the learning rate and the batch of a step follow from; the step itself is all the state that they have.
  nlohmann::json schedule_description() const {
    const LrScheduleOptions options = schedule_options(config_);
    return {{"type", options.name},
            {"lr", options.learning_rate},
            {"min_lr", options.min_learning_rate},
            {"warmup_iters", options.num_warmup_steps},
            {"decay_iters", options.num_decay_steps},
            {"train_iters", options.num_steps},
            {"global_batch_size", config_.training.global_batch_size}};
  }

  void save() {
    save_checkpoint(group_, checkpoints() / checkpoint_name(steps_done_), state(),
                    {.keep_last = static_cast<int>(config_.checkpoint.keep_last)});
    saved_step_ = steps_done_;
  }

  void restore() {
    if (!config_.checkpoint.restore_from) return;
    const bool latest = *config_.checkpoint.restore_from == "LATEST";
    if (latest && !std::filesystem::exists(checkpoints() / "LATEST") && list_checkpoints(checkpoints()).empty()) {
      log_info("no checkpoint in ", checkpoints().string(), ": starting from step 1");
      return;
    }
    const std::filesystem::path folder =
        latest ? latest_checkpoint(checkpoints()) : std::filesystem::path(*config_.checkpoint.restore_from);
    const CheckpointState mine = state();
    const nlohmann::json extra = load_checkpoint(group_, folder, mine.tensors);
    if (!extra.contains("step") || !extra.contains("cursor"))
      throw CheckpointError(str(folder.string(), " was not saved by training: it holds no step and no place in the data"));
    for (const char* key : {"seed", "model", "tokenizer"})
      if (extra.contains(key) && extra[key] != mine.extra[key])
        throw CheckpointError(
            str(folder.string(), ": saved with ", key, " ", extra[key].dump(), ", this run has ", mine.extra[key].dump()));
    if (is_first() && extra.contains("schedule") && extra["schedule"] != mine.extra["schedule"])
      log_warning(folder.string(), ": saved with schedule ", extra["schedule"].dump(), ", goes on with ", mine.extra["schedule"].dump());
    if (extra.contains("random")) set_random_state({extra["random"].at("seed"), extra["random"].at("counter")});
    steps_done_ = extra.at("step");
    data_.seek(extra.at("cursor"));
    if (latest) saved_step_ = steps_done_;
    log_info("resumed from ", folder.string(), " after step ", steps_done_);
  }

  // 0, or the signal that ended the text. The first replica's tensor-parallel ranks decode together, nobody waits for them.
  int sample() {
    const UnshardScope whole(*parallel_.engine);
    int signal = 0;
    const ProcessGroup& together = parallel_.mesh.group("tp");
    const auto go_on = [&](const std::string&) { return (signal = agree_on_signal(together)) == 0; };
    if (parallel_.data_group.rank() == 0) {
      const std::string text = generate_text(*model_, data_.tokenizer(), *config_.sample.prompt,
                                             {.max_new_tokens = config_.sample.max_new_tokens,
                                              .sampling = {.temperature = config_.sample.temperature,
                                                           .top_k = config_.sample.top_k,
                                                           .top_p = config_.sample.top_p,
                                                           .seed = static_cast<uint64_t>(config_.training.seed)}},
                                             go_on);
      const std::string all = *config_.sample.prompt + text + "\n";
      if (is_first()) {
        std::fwrite(all.data(), 1, all.size(), stdout);
        std::fflush(stdout);
      }
    }
    return signal;
  }

  const World& world_;
  const TrainConfig config_;
  const ProcessGroup group_;
  const ShardPolicyGuard policy_;
  std::unique_ptr<CausalLm> model_;
  ParallelModel parallel_;
  TrainData data_;
  const LrSchedule schedule_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<MetricsLog> metrics_;
  int64_t steps_done_ = 0, saved_step_ = -1;  // the newest in output_dir
};

Trainer::Trainer(const World& world, const LoadedConfig& loaded) : impl_(std::make_unique<Impl>(world, loaded)) {}
Trainer::~Trainer() = default;
int Trainer::run() { return impl_->run(); }

}  // namespace hyper_parallel
