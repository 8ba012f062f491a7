// SPDX-License-Identifier: Apache-2.0
// What comes after training (checkpoint, generate), other launchers (torchrun, mpirun), and a program built against the installed library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/cli/support/run.h"

namespace hyper_parallel {
namespace {

using namespace test;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class Tools : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TrainFolder;
    outcome_ = folder_->train(
        "out", {"--checkpoint.save_steps=3", "--sample.prompt=the river", "--sample.max_new_tokens=40", "--sample.temperature=0"});
    ASSERT_EQ(outcome_.exit_code, 0) << outcome_.output;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static RunOutput run() { return folder_->output("out"); }
  static Strings generate(const fs::path& model, const Strings& more) {
    Strings arguments = {"generate", "--model", model, "--prompt", "the river", "--max-new-tokens", "40"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static TrainFolder* folder_;
  static Outcome outcome_;
};
TrainFolder* Tools::folder_ = nullptr;
Outcome Tools::outcome_;

TEST_F(Tools, GreedyTextIsTheSameFromEverySource) {
  const fs::path exported = folder_->path() / "exported";
  const Outcome written = hyper_parallel({"checkpoint", "export", run().folder, "--output", exported});
  ASSERT_EQ(written.exit_code, 0) << written.output;
  EXPECT_EQ(written.output, run().checkpoint(6).string() + " -> " + exported.string() + "\n");
  const Strings greedy = {"--temperature", "0"};
  const std::vector<Outcome> texts =
      hyper_parallel_each({generate(run().folder, greedy), generate(run().checkpoint(6), greedy), generate(exported, greedy)});
  const Outcome& text = texts[0];
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.output, StartsWith("the river"));
  EXPECT_GE(text.output.size(), std::string("the river").size() + 40);
  EXPECT_EQ(texts[1].output, text.output);
  EXPECT_EQ(texts[2].output, text.output);
  EXPECT_THAT(outcome_.output, HasSubstr(text.output));  // the sample at the end of training, from the shards of two ranks
}

TEST_F(Tools, SampledTextFollowsTheSeed) {
  const Strings warm = {"--temperature", "1", "--seed", "5"};
  const std::vector<Outcome> texts = hyper_parallel_each(
      {generate(run().folder, warm), generate(run().folder, warm), generate(run().folder, {"--temperature", "1", "--seed", "6"})});
  EXPECT_EQ(texts[0].exit_code, 0);
  EXPECT_EQ(texts[1].output, texts[0].output);
  EXPECT_NE(texts[2].output, texts[0].output);
}

TEST_F(Tools, GenerateRefusesBadNumbers) {
  const std::pair<Strings, const char*> cases[] = {
      {{"--max-new-tokens", "0"}, "max_new_tokens: 0 (allowed: 1 or above)"},
      {{"--max-new-tokens", "120"}, "max_new_tokens: 120 (allowed: 1 to 119: "},
      {{"--max-new-tokens", "5", "--temperature", "-1"}, "temperature: -1 (allowed: 0 for greedy, or above)"},
      {{"--max-new-tokens", "5", "--top-p", "0"}, "top_p: 0 (allowed: above 0, up to 1)"},
      {{"--max-new-tokens", "5", "--top-k", "-2"}, "top_k: -2 (allowed: 0 for all, or above)"}};
  std::vector<Strings> commands;
  for (const auto& [arguments, message] : cases) {
    commands.push_back({"generate", "--model", run().folder, "--prompt", "the river"});
    commands.back().insert(commands.back().end(), arguments.begin(), arguments.end());
  }
  const std::vector<Outcome> outcomes = hyper_parallel_each(commands);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].exit_code, 2) << outcomes[i].output;
    EXPECT_THAT(outcomes[i].output, StartsWith(std::string("error: ") + cases[i].second));
  }
}

TEST_F(Tools, InspectListsTensorsCountersAndPieces) {
  const std::vector<Outcome> outcomes =
      hyper_parallel_each({{"checkpoint", "inspect", run().folder}, {"checkpoint", "inspect", "--pieces", run().checkpoint(3)}});
  const Outcome &outcome = outcomes[0], &pieces = outcomes[1];
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, StartsWith(run().checkpoint(6).string() + ": "));
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("saved by 2 ranks in 2 files\n"), HasSubstr("\"step\":6"), HasSubstr("\"tokenizer\":\"byte\"")));
  EXPECT_THAT(outcome.output, testing::ContainsRegex("model\\.layers\\.0\\.self_attn\\.q_proj\\.weight +F32 +\\[32, 32\\]"));
  EXPECT_EQ(outcome.output.find("rank-00001.safetensors"), std::string::npos);
  EXPECT_THAT(pieces.output, AllOf(HasSubstr("\"step\":3"), HasSubstr("rank-00001.safetensors: offsets ")));
}

TEST_F(Tools, VerifySaysOk) {
  const Outcome outcome = hyper_parallel({"checkpoint", "verify", run().folder});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.output, run().checkpoint(6).string() + ": ok\n");
}

TEST_F(Tools, TransformersOpensTheExport) {
  const fs::path python = source_root() / ".venv/bin/python", exported = folder_->path() / "bf16";
  if (!fs::exists(python)) GTEST_SKIP() << python << " is not there";
  ASSERT_EQ(hyper_parallel({"checkpoint", "export", run().checkpoint(6), "--output", exported, "--dtype", "bfloat16"}).exit_code, 0);
  const std::string script =
      "import sys, json\nfrom safetensors import safe_open\nfile = safe_open(sys.argv[1] + '/model.safetensors', 'pt')\n"
      "tensor = file.get_tensor('model.embed_tokens.weight')\n"
      "print(tensor.dtype, list(tensor.shape), json.load(open(sys.argv[1] + '/config.json'))['architectures'])\n";
  const Outcome outcome = run_program({python, "-c", script, exported}, seconds(60));
  EXPECT_EQ(outcome.output, "torch.bfloat16 [260, 32] ['Qwen3ForCausalLM']\n");
}

TEST(Launchers, TorchrunAndMpirunRunTheSameTraining) {
  const TrainFolder folder;
  const RunOutput ours = folder.run("ours", {"--rank-mode=processes"});
  const std::string torchrun = source_root() / ".venv/bin/torchrun";
  const std::pair<std::string, Strings> launchers[] = {
      {"torchrun", {torchrun, "--standalone", "--nproc-per-node", "2", "--no-python"}},
      {"mpirun", {"/usr/bin/mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"}}};
  for (const auto& [name, start] : launchers) {
    if (!fs::exists(start[0])) GTEST_SKIP() << start[0] << " is not there";
    Strings argv = start;
    argv.push_back(binary());
    for (const std::string& argument : folder.arguments(name)) argv.push_back(argument);
    const Outcome outcome = run_program(argv, seconds(100), environment());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(folder.output(name).metric("loss"), ours.metric("loss")) << name;
    EXPECT_EQ(folder.output(name).tensor_bytes(6), ours.tensor_bytes(6)) << name;
    const size_t line = outcome.output.find("step 3/6");
    EXPECT_EQ(outcome.output.find("step 3/6", line + 1), std::string::npos) << "only rank 0 prints: " << outcome.output;
  }
}

TEST(Launchers, WorldThatDoesNotFitIsRefused) {
  const TrainFolder folder;
  const Outcome outcome =
      folder.train("out", {"--training.global_batch_size=5"}, {"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("micro_batch_size * data-parallel ranks = 2 * 1 = 2"));
  const Outcome contradictory = folder.train("out", {}, {"RANK=3", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"});
  EXPECT_EQ(contradictory.exit_code, 2);
  EXPECT_THAT(contradictory.output, HasSubstr("environment variable RANK=3 (allowed: 0 to 1"));
}

TEST(Install, ConsumerBuildsAgainstTheInstalledTree) {
  const TemporaryFolder folder;
  const fs::path build_root = binary().parent_path().parent_path(), installed = folder / "installed", build = folder / "consumer";
  const Strings steps[] = {
      {"cmake", "--install", build_root, "--prefix", installed},
      {"cmake", "-G", "Ninja", "-S", source_root() / "examples/consumer", "-B", build, "-DCMAKE_PREFIX_PATH=" + installed.string()},
      {"cmake", "--build", build},
      {build / "consumer"},
      {installed / "bin/hyper-parallel", "info"}};
  for (const Strings& argv : steps) {
    const Outcome outcome = run_program(argv, seconds(200), environment());
    ASSERT_EQ(outcome.exit_code, 0) << argv[0] << "\n" << outcome.output;
    if (argv[0] == (build / "consumer").string()) {
      EXPECT_THAT(outcome.output, HasSubstr("step 20  loss "));
    }
  }
}

}  // namespace
}  // namespace hyper_parallel
