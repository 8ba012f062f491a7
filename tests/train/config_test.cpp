// SPDX-License-Identifier: Apache-2.0
// Rules over several keys, and the meshes that follow from a world's size. Exact messages of whole runs are in tests/cli/surface_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/config_writer.h"
#include "hyper_parallel/base/error.h"
#include "hyper_parallel/train/train_config.h"

namespace hyper_parallel {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

LoadedConfig load(const std::vector<std::string>& overrides) {
  LoadedConfig loaded{
      ConfigDocument::parse("dataset: { paths: [text.txt], sequence_length: 16 }\n"
                            "model: { config: { vocab_size: 260, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2,\n"
                            "  head_dim: 4, intermediate_size: 8, max_position_embeddings: 16 } }\n",
                            "run.yaml"),
      {}};
  for (const std::string& assignment : overrides) loaded.document.override_value(assignment);
  loaded.config = read_config<TrainConfig>(loaded.document);
  return loaded;
}

std::string check_error(const std::vector<std::string>& overrides, int64_t world_size = 1) {
  try {
    check_train_config(load(overrides), world_size);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::pair<int64_t, int64_t> sizes(int64_t world_size, int64_t replicate, int64_t shard) {
  const DataParallelSizes found = data_parallel_sizes(
      load({"fsdp_config.dp_replicate_size=" + std::to_string(replicate), "fsdp_config.dp_shard_size=" + std::to_string(shard)}),
      world_size);
  return {found.replicate, found.shard};
}

std::string sizes_error(int64_t world_size, int64_t replicate, int64_t shard) {
  try {
    sizes(world_size, replicate, shard);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(DataParallelSizes, ZeroTakesWhatIsLeft) {
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(sizes(1, 0, 0), Pair(1, 1));
  EXPECT_EQ(sizes(8, 0, 0), Pair(1, 8));
  EXPECT_EQ(sizes(8, 2, 0), Pair(2, 4));
  EXPECT_EQ(sizes(8, 0, 2), Pair(4, 2));
  EXPECT_EQ(sizes(8, 0, 1), Pair(8, 1));
  EXPECT_EQ(sizes(8, 8, 0), Pair(8, 1));
  EXPECT_EQ(sizes(6, 2, 3), Pair(2, 3));
}

TEST(DataParallelSizes, ErrorsListWhatDivides) {
  EXPECT_THAT(sizes_error(12, 0, 5), StartsWith("fsdp_config.dp_shard_size: 5 does not divide the 12 ranks left after tp_size=1, pp_size=1 "
                                                "(allowed: 1, 2, 3, 4, 6, 12)"));
  EXPECT_THAT(sizes_error(6, 4, 0), StartsWith("fsdp_config.dp_replicate_size: 4 does not divide the 6 ranks left"));
  EXPECT_THAT(sizes_error(8, 2, 2),
              StartsWith("fsdp_config.dp_replicate_size: 2 * dp_shard_size=2 is not the 8 ranks (allowed: 4, or 0 for that)"));
}

TEST(CheckTrainConfig, AcceptsWhatFits) {
  EXPECT_EQ(check_error({}), "");
  EXPECT_EQ(check_error({}, 8), "");
  EXPECT_EQ(check_error({"accelerator.tp_size=2", "fsdp_config.dp_replicate_size=2", "accelerator.sequence_parallel=true"}, 8), "");
  EXPECT_EQ(check_error({"training.global_batch_size=12", "training.micro_batch_size=3", "fsdp_config.dp_replicate_size=2"}, 4), "");
  EXPECT_EQ(check_error({"training.train_iters=10", "training.stop_at_step=10", "lr_scheduler.type=wsd", "lr_scheduler.warmup_iters=4",
                         "lr_scheduler.decay_iters=6"}),
            "");
}

TEST(CheckTrainConfig, RefusesWhatDoesNot) {
  EXPECT_THAT(check_error({}, 3),
              StartsWith("training.global_batch_size: 8 is not a multiple of micro_batch_size * data-parallel ranks = 1 * 3 = 3"));
  EXPECT_THAT(check_error({"accelerator.tp_size=2"}, 3), StartsWith("accelerator.tp_size: 2 does not divide the 3 ranks (allowed: 1, 3)"));
  EXPECT_THAT(check_error({"accelerator.sequence_parallel=true"}, 2),
              StartsWith("accelerator.sequence_parallel: true without tensor parallelism (allowed: false, or tp_size above 1)"));
  for (const char* axis : {"cp", "ep", "pp"}) {
    const std::string key = std::string("accelerator.") + axis + "_size";
    EXPECT_THAT(check_error({key + "=2"}, 2), StartsWith(key + ": 2 is not available in this version (allowed: 1)"));
  }
  EXPECT_THAT(check_error({"training.train_iters=5", "training.stop_at_step=6"}),
              StartsWith("training.stop_at_step: 6 is beyond training.train_iters=5"));
  EXPECT_THAT(check_error({"training.train_iters=5", "lr_scheduler.warmup_iters=6"}),
              StartsWith("lr_scheduler.warmup_iters: 6 is beyond training.train_iters=5"));
  EXPECT_THAT(check_error({"training.train_iters=5", "lr_scheduler.type=wsd", "lr_scheduler.warmup_iters=3", "lr_scheduler.decay_iters=3"}),
              StartsWith("lr_scheduler.decay_iters: warmup_iters + decay_iters = 6 is beyond training.train_iters=5"));
  EXPECT_THAT(check_error({"lr_scheduler.decay_iters=3"}), StartsWith("lr_scheduler.decay_iters: 3 is for type wsd alone, not cosine"));
  EXPECT_THAT(check_error({"training.eval_steps=2"}), StartsWith("training.eval_steps: evaluation needs dataset.held_out_fraction > 0"));
  EXPECT_THAT(check_error({"optimizer.betas=[0.9]"}), StartsWith("optimizer.betas: expected two numbers, got 1"));
  EXPECT_THAT(check_error({"dataset.paths=[]"}), StartsWith("dataset.paths: expected at least one file or glob"));
}

TEST(CheckTrainConfig, ModelErrorsNameTheKeyAndTheLine) {
  EXPECT_EQ(check_error({"model.config.vocab_size=258"}),
            "model.config.vocab_size: 258 is less than the 259 tokens of the byte tokenizer\n"
            "  from the command line: --model.config.vocab_size=...");
  EXPECT_EQ(check_error({"dataset.sequence_length=17"}),
            "dataset.sequence_length: 17 is beyond the model's max_position_embeddings=16\n"
            "  from the command line: --dataset.sequence_length=...");
  EXPECT_EQ(check_error({"model.config.head_dim=3"}),
            "model.config.head_dim: 3 (allowed: an even number, for rotary positions)\n"
            "  from the command line: --model.config.head_dim=...");
  EXPECT_EQ(check_error({"model.config.num_key_value_heads=3"}),
            "model.config.num_key_value_heads: 3 does not divide num_attention_heads, 2\n"
            "  from the command line: --model.config.num_key_value_heads=...");
  EXPECT_THAT(check_error({"model.config=null"}), StartsWith("model.config.vocab_size: missing (a whole number above 0)"));
  EXPECT_THAT(check_error({"model.pretrained_path=nowhere"}), StartsWith("model.pretrained_path: nowhere/config.json: can't be read"));
}

TEST(TrainConfig, ResolvedYamlReadsBackEqual) {
  const LoadedConfig loaded =
      load({"training.stop_at_step=3", "checkpoint.restore_from=LATEST", "optimizer.lr=1e-30", "sample.prompt='a: \"b\"\n'"});
  const std::string text = config_yaml(loaded.config);
  EXPECT_EQ(config_yaml(read_config<TrainConfig>(ConfigDocument::parse(text))), text);
  EXPECT_THAT(text, HasSubstr("stop_at_step: 3"));
}

}  // namespace
}  // namespace hyper_parallel
