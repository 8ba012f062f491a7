// SPDX-License-Identifier: Apache-2.0
// Trains a small Qwen3 for a few steps on four ranks (threads of this process), sharded over two of them and replicated over two.
#include <ATen/ops/arange.h>
#include <hyper_parallel/base/error.h>
#include <hyper_parallel/collectives/world.h>
#include <hyper_parallel/train/parallelize.h>
#include <hyper_parallel/train/train_step.h>

#include <cstdio>

int main() {
  const nlohmann::json config = {{"vocab_size", 32},         {"hidden_size", 32}, {"num_hidden_layers", 2},  {"num_attention_heads", 2},
                                 {"num_key_value_heads", 1}, {"head_dim", 16},    {"intermediate_size", 64}, {"tie_word_embeddings", true}};
  hp::run_threads(4, [&](hp::World& world) {
    const auto model = hp::make_model("qwen3", config);
    const hp::ParallelModel parallel = hp::parallelize(*model, world.group(), {.replicate_size = 2, .shard_size = 2});
    parallel.engine->materialize({.dtype = at::kFloat, .seed = 1});
    const auto optimizer = hp::make_optimizer("adamw", hp::optimizer_parameters(*parallel.engine), {});
    hp::TrainStep step(*model, *parallel.engine, *optimizer, parallel.data_group, 1.0);
    const at::Tensor tokens = at::arange(33, at::kLong).remainder(8).view({1, 33});  // 0 1 2 ... 7 0 1 2 ...
    const hp::MicroBatch batch{tokens.narrow(1, 0, 32), tokens.narrow(1, 1, 32)};
    for (int i = 1; i <= 20; ++i) {
      const hp::StepResult result = step.run({&batch, 1}, 1e-2);
      if (world.rank() == 0 && i % 5 == 0) std::printf("step %d  loss %.4f\n", i, result.loss);
    }
  });
}
