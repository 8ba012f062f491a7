// SPDX-License-Identifier: Apache-2.0
// The trainer with ranks as threads of this process, where sanitizers see all of it. Whole runs of the program are in tests/cli.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint_reader.h"
#include "hyper_parallel/shard/op_registry.h"
#include "hyper_parallel/shard/policy.h"
#include "hyper_parallel/train/trainer.h"
#include "tests/distributed_checkpoint/support/layouts.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() {
    std::string text;
    for (int line = 0; line < 100; ++line) text += "line " + std::to_string(line * line) + "\n";
    write_text(folder_ / "text.txt", text);
  }

  LoadedConfig load(const std::string& output, const std::vector<std::string>& overrides) const {
    LoadedConfig loaded{
        ConfigDocument::parse("model: { config: { vocab_size: 260, hidden_size: 8, num_hidden_layers: 2, num_attention_heads: 2,\n"
                              "  head_dim: 4, intermediate_size: 8, max_position_embeddings: 64, tie_word_embeddings: true } }\n"
                              "training: { train_iters: 4, global_batch_size: 8, micro_batch_size: 1 }\n"
                              "dataset: { sequence_length: 8, held_out_fraction: 0.1 }\n",
                              "run.yaml"),
        {}};
    loaded.document.override_value("dataset.paths=[" + (folder_ / "text.txt").string() + "]");
    loaded.document.override_value("output_dir=" + (folder_ / output).string());
    for (const std::string& assignment : overrides) loaded.document.override_value(assignment);
    loaded.config = read_config<TrainConfig>(loaded.document);
    return loaded;
  }

  // Standard error and output are the user's; here they only disturb.
  void train(const std::string& output, int num_ranks, const std::vector<std::string>& overrides = {}) const {
    const LoadedConfig loaded = load(output, overrides);
    check_train_config(loaded, num_ranks);
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    std::exception_ptr error;
    try {
      run_threads(num_ranks, [&](World& world) { EXPECT_EQ(Trainer(world, loaded).run(), 0); });
    } catch (...) {
      error = std::current_exception();
    }
    testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
    if (error) std::rethrow_exception(error);
  }

  std::vector<double> losses(const std::string& output) const {
    std::ifstream file(folder_ / output / "metrics.jsonl");
    std::vector<double> values;
    for (std::string line; std::getline(file, line);) values.push_back(nlohmann::json::parse(line).at("loss"));
    return values;
  }

  TemporaryFolder folder_;
};

TEST_F(TrainerTest, ThePolicyOfDTensorOpsHoldsOnEveryRankAsLongAsTheTrainer) {
  const LoadedConfig loaded = load("out", {"shard.implicit_redistribution=error", "shard.on_missing_rule=replicate"});
  run_threads(2, [&](World& world) {
    {
      const Trainer trainer(world, loaded);
      EXPECT_EQ(shard_policy().implicit_redistribution, ImplicitRedistribution::kError);
      EXPECT_EQ(shard_policy().on_missing_rule, MissingRule::kReplicate);
    }
    EXPECT_EQ(shard_policy().implicit_redistribution, ImplicitRedistribution::kAllow);
  });
}

TEST_F(TrainerTest, RulesOfTheUserAreLoaded) {
  const std::filesystem::path mine = folder_ / "mine.yaml";
  std::ofstream(mine) << "aten::no_such_op: { rule: \"... -> ...\" }\n";
  const auto train_with = [&](const std::filesystem::path& rules) { train("out", 2, {"shard.rules=[" + rules.string() + "]"}); };
  EXPECT_THAT(message_of<LayoutError>([&] { train_with(mine); }),
              AllOf(HasSubstr("aten::no_such_op: libtorch has no such op"), HasSubstr("mine.yaml:1")));
  EXPECT_THAT(message_of<LayoutError>([&] { train_with(folder_ / "absent.yaml"); }), HasSubstr("can't read"));
  std::ofstream(mine) << "aten::poisson: { rule: \"... -> ...\" }\n";
  train_with(mine);
  EXPECT_EQ(op_rows().count("aten::poisson"), 1u);
}

TEST_F(TrainerTest, AnyLayoutTrainsEvaluatesSavesAndSamplesAlike) {
  const std::vector<std::string> options = {"training.eval_steps=2", "checkpoint.save_steps=2", "sample.prompt=line",
                                            "sample.max_new_tokens=4"};
  train("one", 1, options);
  const std::vector<double> expected = losses("one");
  ASSERT_EQ(expected.size(), 4u);
  const auto expect_close = [&](const std::string& output) {
    const std::vector<double> found = losses(output);
    ASSERT_EQ(found.size(), expected.size()) << output;
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i]) << output << " step " << i + 1;
  };
  train("two", 2, options);
  expect_close("two");
  std::vector<std::string> hybrid = options;
  hybrid.insert(hybrid.end(), {"fsdp_config.dp_replicate_size=2", "fsdp_config.forward_prefetch_depth=2"});
  train("hybrid", 4, hybrid);
  expect_close("hybrid");
}

TEST_F(TrainerTest, ResumesExactly) {
  train("whole", 2);
  train("parts", 2, {"training.stop_at_step=2"});
  train("parts", 2, {"checkpoint.restore_from=LATEST"});
  EXPECT_EQ(losses("parts"), losses("whole"));
  const auto file = [&](const char* run) { return read_text(folder_ / run / "checkpoints/step-000004/rank-00001.safetensors"); };
  EXPECT_TRUE(file("parts") == file("whole"));
}

// A run that is restored with no step left to do saves at once, in its own layout: what it holds is what was loaded.
TEST_F(TrainerTest, RestoresModelAndOptimizerBitForBitInEveryLayout) {
  const std::vector<std::string> uneven = {"model.config.hidden_size=9", "model.config.intermediate_size=7", "model.config.vocab_size=263",
                                           "training.global_batch_size=12", "training.stop_at_step=2"};
  train("saved", 2, uneven);
  const std::filesystem::path saved = folder_ / "saved/checkpoints/step-000002";
  CheckpointReader expected(saved);
  for (const std::string& name : expected.names()) {
    const at::Tensor tensor = expected.read(name);
    EXPECT_TRUE(tensor.ne(0).any().item<bool>()) << name << " must hold something to lose";
  }
  struct Layout {
    const char* name;
    int num_ranks;
    const char* option;
  };
  for (const Layout& layout : {Layout{"one", 1, "fsdp_config.dp_replicate_size=1"}, Layout{"two", 2, "fsdp_config.dp_replicate_size=2"},
                               Layout{"three", 3, "fsdp_config.dp_replicate_size=1"}, Layout{"four", 4, "fsdp_config.dp_replicate_size=1"},
                               Layout{"hybrid", 4, "fsdp_config.dp_replicate_size=2"}}) {
    std::vector<std::string> options = uneven;
    options.insert(options.end(), {layout.option, "checkpoint.restore_from=" + saved.string()});
    train(layout.name, layout.num_ranks, options);
    CheckpointReader found(folder_ / layout.name / "checkpoints/step-000002");
    EXPECT_EQ(found.metadata().num_ranks, layout.num_ranks);
    EXPECT_EQ(found.extra(), expected.extra()) << layout.name;
    ASSERT_EQ(found.names(), expected.names()) << layout.name;
    for (const std::string& name : expected.names()) {
      EXPECT_TRUE(testing_support::same_bytes(found.read(name), expected.read(name))) << name << " on " << layout.name;
    }
  }
  for (const char* name : {"model.embed_tokens.weight", "optimizer.step", "optimizer.exp_avg.model.norm.weight",
                           "optimizer.exp_avg_sq.model.layers.1.mlp.down_proj.weight"}) {
    EXPECT_TRUE(expected.contains(name)) << name;
  }
}

TEST_F(TrainerTest, DoesNotResumeWithAnotherSeed) {
  train("seeded", 2, {"training.stop_at_step=1", "training.seed=3"});
  const std::string message = message_of<CheckpointError>([&] {
    train("seeded", 2, {"checkpoint.restore_from=LATEST", "training.seed=4"});
  });
  EXPECT_THAT(message, testing::HasSubstr("step-000001: saved with seed 3, this run has 4"));
}

TEST_F(TrainerTest, StopsAtANumberThatIsNotFinite) {
  const std::vector<std::string> options = {"optimizer.lr=1e30", "training.max_grad_norm=0"};
  const std::string message = message_of<RuntimeError>([&] { train("out", 2, options); });
  EXPECT_THAT(message, AllOf(HasSubstr(": loss "), HasSubstr("weights are as after step "), HasSubstr("\n  rank 0: loss "),
                             HasSubstr("\n  rank 1: loss ")));
  EXPECT_LT(losses("out").size(), 4u);
}

TEST_F(TrainerTest, SaysWhatIsWrongWithTheData) {
  const std::string key = "dataset.paths: ";
  EXPECT_THAT(message_of<ConfigError>([&] { train("out", 2, {"dataset.paths=[none.txt]"}); }), HasSubstr(key + "none.txt: no such file"));
  EXPECT_THAT(message_of<ConfigError>([&] { train("out", 2, {"dataset.max_bytes=5"}); }),
              HasSubstr(key + "the text has 5 tokens; one sequence of 8 needs 9"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

}  // namespace
}  // namespace hyper_parallel
