// SPDX-License-Identifier: Apache-2.0
// What users type and read: commands, flags, exit codes, and the message for each kind of bad configuration. Changing a golden list here
// changes the program for its users.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/cli/support/run.h"

namespace hyper_parallel {
namespace {

using namespace test;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

struct Command {
  Strings words;
  std::set<std::string> flags, positionals;
};

const Command kCommands[] = {
    Command{{}, {"--help", "--version"}, {"train", "generate", "checkpoint", "config", "info"}},
    Command{{"train"}, {"--help", "--ranks", "--rank-mode"}, {"config"}},
    Command{{"generate"},
            {"--help", "--model", "--prompt", "--max-new-tokens", "--temperature", "--top-k", "--top-p", "--seed", "--dtype"},
            {}},
    Command{{"checkpoint"}, {"--help"}, {"inspect", "verify", "export"}},
    Command{{"checkpoint", "inspect"}, {"--help", "--pieces"}, {"path"}},
    Command{{"checkpoint", "verify"}, {"--help"}, {"path"}},
    Command{{"checkpoint", "export"}, {"--help", "--output", "--dtype"}, {"path"}},
    Command{{"config"}, {"--help"}, {"check", "show", "schema", "docs"}},
    Command{{"config", "check"}, {"--help"}, {"config"}},
    Command{{"config", "show"}, {"--help"}, {"config"}},
    Command{{"config", "schema"}, {"--help"}, {}},
    Command{{"config", "docs"}, {"--help"}, {}},
    Command{{"info"}, {"--help", "--json"}, {}}};

TEST(Surface, HelpListsTheGoldenFlags) {
  std::vector<Strings> lines;
  for (const Command& command : kCommands) {
    lines.push_back(command.words);
    lines.back().push_back("--help");
  }
  const std::vector<Outcome> outcomes = hyper_parallel_each(lines);
  const std::regex flag("^ +(?:-[a-z],)?(--[a-z-]+)"), positional("^  ([a-z]+)");
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].exit_code, 0);
    std::set<std::string> flags, names;
    std::istringstream text(outcomes[i].output);
    for (std::string line; std::getline(text, line);) {
      std::smatch match;
      if (std::regex_search(line, match, flag)) flags.insert(match[1]);
      if (std::regex_search(line, match, positional)) names.insert(match[1]);
    }
    EXPECT_EQ(flags, kCommands[i].flags) << outcomes[i].output;
    EXPECT_EQ(names, kCommands[i].positionals) << outcomes[i].output;
  }
}

TEST(Surface, Version) {
  const Outcome outcome = hyper_parallel({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(std::regex_match(outcome.output, std::regex("0\\.1\\.0 \\(libtorch 2\\.13\\.[0-9]+\\)\n"))) << outcome.output;
}

TEST(Surface, InfoNamesWhatIsRegistered) {
  const Outcome outcome = hyper_parallel({"info", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto info = nlohmann::ordered_json::parse(outcome.output);
  Strings keys;
  for (const auto& [key, value] : info.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("version", "libtorch", "backends", "models", "optimizers", "lr_schedulers", "tokenizers", "ops"));
  EXPECT_EQ(info["libtorch"]["built"], info["libtorch"]["loaded"]);
  EXPECT_EQ(info["backends"].dump(), R"(["thread","gloo"])");
  EXPECT_EQ(info["models"].dump(), R"(["llama","qwen3"])");
  EXPECT_EQ(info["optimizers"].dump(), R"(["adamw"])");
  EXPECT_EQ(info["lr_schedulers"].dump(), R"(["constant","cosine","linear","wsd"])");
  EXPECT_EQ(info["tokenizers"].dump(), R"(["byte"])");
  EXPECT_THAT(info["ops"].get<Strings>(), AllOf(Contains("aten::mm"), Contains("aten::add.Tensor")));

  const Outcome text = hyper_parallel({"info"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.output, HasSubstr("models         llama, qwen3\n"));
}

TEST(Surface, SchemaIsJsonAndKnowsEverySection) {
  const Outcome outcome = hyper_parallel({"config", "schema"});
  ASSERT_EQ(outcome.exit_code, 0);
  const auto schema = nlohmann::ordered_json::parse(outcome.output);
  Strings keys;
  for (const auto& [key, value] : schema["properties"].items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("output_dir", "launcher", "model", "optimizer", "lr_scheduler", "training", "accelerator", "shard",
                                "fsdp_config", "dataset", "checkpoint", "sample"));
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["properties"]["dataset"]["required"].dump(), R"(["paths"])");
}

TEST(Surface, ConfigurationPageIsUpToDate) {
  const Outcome outcome = hyper_parallel({"config", "docs"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.output, read_text(source_root() / "docs/configuration.md"))
      << "run: hyper-parallel config docs > docs/configuration.md";
}

TEST(Surface, ShippedConfigsAreValid) {
  for (const auto& entry : fs::directory_iterator(source_root() / "configs")) {
    const Outcome outcome = hyper_parallel({"config", "check", entry.path()});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, StartsWith(entry.path().string() + ": ok ("));
  }
}

TEST(Surface, ShowPrintsEveryKeyWithOverrides) {
  const TrainFolder run;
  const Outcome outcome = hyper_parallel({"config", "show", run.config(), "--training.train_iters=9", "--checkpoint.keep_last=4"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("  train_iters: 9\n"), HasSubstr("  keep_last: 4\n"), HasSubstr("  top_p: 1.0\n")));
  write_text(run.path() / "shown.yaml", outcome.output);
  EXPECT_EQ(hyper_parallel({"config", "show", run.path() / "shown.yaml"}).output, outcome.output);
}

TEST(Surface, UsageErrorsHaveExitCode2) {
  const TrainFolder run;
  const std::pair<Strings, const char*> cases[] = {
      {{}, "A subcommand is required"},
      {{"trian"}, "unknown command \"trian\" (did you mean \"train\"?)"},
      {{"train"}, "config is required"},
      {{"checkpoint"}, "A subcommand is required"},
      {{"checkpoint", "verify"}, "path is required"},
      {{"checkpoint", "export", "x"}, "--output is required"},
      {{"generate", "--prompt", "a"}, "--model is required"},
      {{"generate", "--model", "x", "--prompt", "a", "--top-k", "many"}, "--top-k"},
      {{"generate", "--model", run.path() / "none", "--prompt", "a"}, "none: no such file or folder"},
      {{"generate", "--model", run.path(), "--prompt", "a"},
       "is neither a checkpoint (metadata.json), a run's folder (checkpoints/LATEST) nor a model folder (config.json)"},
      {{"generate", "--model", "x", "--prompt", "a", "--dtype", "int8"},
       "--dtype: unknown type \"int8\" (allowed: float32, float64, bfloat16, float16)"},
      {{"checkpoint", "verify", run.path()}, "is neither a checkpoint (metadata.json) nor a folder with checkpoints (LATEST)"},
      {{"train", run.config(), "--ranks", "two"}, "--ranks"},
      {{"train", run.config(), "--ranks", "0"}, "launcher.ranks: 0 is out of range (allowed: >= 1 and <= 4096)"},
      {{"train", run.config(), "--rank-mode", "fibres"}, "launcher.rank_mode: unknown value \"fibres\" (allowed: threads, processes)"},
  };
  std::vector<Strings> commands;
  for (const auto& [arguments, message] : cases) commands.push_back(arguments);
  const std::vector<Outcome> outcomes = hyper_parallel_each(commands);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].exit_code, 2) << outcomes[i].output;
    EXPECT_THAT(outcomes[i].output, HasSubstr(cases[i].second));
  }
}

// `change` replaces the line of run.yaml that starts with its first word; arguments come after the file. Every FILE in a message is
// run.yaml.
struct BadConfig {
  const char* name;
  std::string change;
  Strings arguments;
  std::string message;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

const BadConfig kBadConfigs[] = {
    BadConfig{
        "UnknownKey",
        "colour: red",
        {},
        "colour: unknown key (known here: output_dir, launcher, model, optimizer, lr_scheduler, training, accelerator, shard, fsdp_config, "
        "dataset, checkpoint, sample)\n  in FILE:18"},
    BadConfig{"MistypedKey",
              "training: { train_itres: 6 }",
              {},
              "training.train_itres: unknown key (did you mean \"train_iters\"?)\n  in FILE:16"},
    BadConfig{"MistypedModelKey",
              "    hidden_size: 32\n    num_hidden_layer: 2",
              {},
              "model.config.num_hidden_layer: unknown key; did you mean num_hidden_layers?\n  in FILE:7"},
    BadConfig{"WrongType", "training: { train_iters: many }", {}, "training.train_iters: expected an integer, got \"many\"\n  in FILE:16"},
    BadConfig{"WrongShape", "optimizer: { betas: 0.9 }", {}, "optimizer.betas: expected a list, got \"0.9\"\n  in FILE:14"},
    BadConfig{"OutOfRange",
              "training: { micro_batch_size: 0 }",
              {},
              "training.micro_batch_size: 0 is out of range (allowed: >= 1)\n  in FILE:16"},
    BadConfig{"UnknownValue",
              "lr_scheduler: { type: cosin }",
              {},
              "lr_scheduler.type: unknown value \"cosin\" (allowed: constant, cosine, linear, wsd)\n  in FILE:15"},
    BadConfig{"GivenTwice", "training: { seed: 1, seed: 2 }", {}, "training.seed: given twice\n  in FILE:16"},
    BadConfig{"Missing", "dataset: { sequence_length: 32 }", {}, "dataset.paths: required, but not given\n  in FILE:17"},
    BadConfig{"BatchDoesNotDivide",
              "training: { global_batch_size: 6, micro_batch_size: 2 }",
              {},
              "training.global_batch_size: 6 is not a multiple of micro_batch_size * data-parallel ranks = 2 * 2 = 4\n  in FILE:16"},
    BadConfig{"ShardsDoNotDivide",
              "fsdp_config: { dp_shard_size: 3 }",
              {},
              "fsdp_config.dp_shard_size: 3 does not divide the 2 ranks left after tp_size=1, pp_size=1 (allowed: 1, 2)\n  in FILE:18"},
    BadConfig{"TensorParallel",
              "accelerator: { tp_size: 3 }",
              {},
              "accelerator.tp_size: 3 does not divide the 2 ranks (allowed: 1, 2)\n  in FILE:18"},
    BadConfig{"SequenceParallelAlone",
              "accelerator: { sequence_parallel: true }",
              {},
              "accelerator.sequence_parallel: true without tensor parallelism (allowed: false, or tp_size above 1)\n  in FILE:18"},
    BadConfig{"ShardPolicy",
              "shard: { on_missing_rule: maybe }",
              {},
              "shard.on_missing_rule: unknown value \"maybe\" (allowed: error, replicate)\n  in FILE:18"},
    BadConfig{"PipelineParallel",
              "accelerator: { pp_size: 2 }",
              {},
              "accelerator.pp_size: 2 is not available in this version (allowed: 1); use fsdp_config to split the model\n  in FILE:18"},
    BadConfig{"StepBeyondTheEnd",
              "",
              {"--training.stop_at_step=7"},
              "training.stop_at_step: 7 is beyond training.train_iters=6\n  from the command line: --training.stop_at_step=..."},
    BadConfig{"DecayWithoutWsd",
              "lr_scheduler: { decay_iters: 2 }",
              {},
              "lr_scheduler.decay_iters: 2 is for type wsd alone, not cosine\n  in FILE:15"},
    BadConfig{"OverrideMistyped",
              "",
              {"--training.seeed=1"},
              "training.seeed: unknown key (did you mean \"seed\"?)\n  from the command line: --training.seeed=..."},
    BadConfig{"OverrideWithoutValue", "", {"--training.seed"}, "override \"--training.seed\": expected --section.key=value"},
    BadConfig{"NotYaml", "optimizer: { lr: [1.0 }", {}, "FILE:14:23: not valid YAML: illegal flow end"},
    BadConfig{"VocabularyTooSmall",
              "    vocab_size: 100",
              {},
              "model.config.vocab_size: 100 is less than the 259 tokens of the byte tokenizer\n  in FILE:5"},
    BadConfig{"SequenceTooLong",
              "",
              {"--dataset.sequence_length=129"},
              "dataset.sequence_length: 129 is beyond the model's max_position_embeddings=128\n  from the command line: "
              "--dataset.sequence_length=..."},
    BadConfig{"NoSuchText",
              "dataset: { paths: [FOLDER/none.txt], sequence_length: 32 }",
              {},
              "dataset.paths: FOLDER/none.txt: no such file\n  in FILE:17"},
    BadConfig{"NoSuchModel",
              "model:\n  pretrained_path: nowhere",
              {},
              "model.pretrained_path: nowhere/config.json: can't be read (a Hugging Face model folder has a config.json)\n  in FILE:3"}};

void change_line(const fs::path& file, const std::string& change) {
  if (change.empty()) return;
  std::string text = read_text(file);
  const size_t first_word_end = change.find_first_of(" \n", change.find_first_not_of(' '));
  const size_t begin = text.find("\n" + change.substr(0, first_word_end));
  if (begin == std::string::npos)
    text += change;
  else
    text.replace(begin + 1, text.find('\n', begin + 1) - begin - 1, change);
  write_text(file, text);
}

TEST(BadConfigs, SayWhatAndWhereAndWriteNothing) {
  constexpr size_t kNumCases = std::size(kBadConfigs);
  const TrainFolder folders[kNumCases];
  std::vector<Strings> commands;
  for (size_t i = 0; i < kNumCases; ++i) {
    change_line(folders[i].config(), replaced(kBadConfigs[i].change, "FOLDER", folders[i].path()));
    commands.push_back(folders[i].arguments("out", kBadConfigs[i].arguments));
  }
  const std::vector<Outcome> outcomes = hyper_parallel_each(commands);
  for (size_t i = 0; i < kNumCases; ++i) {
    SCOPED_TRACE(kBadConfigs[i].name);
    const std::string message = replaced(replaced(kBadConfigs[i].message, "FILE", folders[i].config()), "FOLDER", folders[i].path());
    EXPECT_EQ(outcomes[i].exit_code, 2);
    EXPECT_EQ(outcomes[i].output, "error: " + message + "\n");
    EXPECT_FALSE(fs::exists(folders[i].path() / "out"));
  }
}

TEST(BadConfigs, MissingFileOrNoMap) {
  const TrainFolder run;
  const Outcome missing = hyper_parallel({"train", run.path() / "none.yaml"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_EQ(missing.output, "error: cannot read the configuration file " + (run.path() / "none.yaml").string() + "\n");
  write_text(run.config(), "- a\n- b\n");
  const Outcome list = hyper_parallel({"config", "check", run.config()});
  EXPECT_EQ(list.exit_code, 2);
  EXPECT_EQ(list.output, "error: " + run.config().string() + ":1: expected a map of keys at the top, got a list\n");
}

}  // namespace
}  // namespace hyper_parallel
