// SPDX-License-Identifier: Apache-2.0
// Both models against transformers, on small random configurations: logits, loss, every gradient, greedy decoding; and back: transformers
// opens what we write. Two runs of Python in all, since importing transformers takes seconds.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/generate/generate.h"
#include "hyper_parallel/models/weights.h"
#include "tests/parity/support/command.h"

namespace hyper_parallel {
namespace {

namespace fs = std::filesystem;

using test::Outcome;

// Reference data, made once.
class TransformersTest : public testing::TestWithParam<const char*> {
 public:
  static void SetUpTestSuite() {
    root_ = fs::temp_directory_path() / hp::str("transformers_test_", getpid());
    fs::create_directories(root_ / "reference");
    const Outcome outcome = test::run_python("transformers_reference.py", {(root_ / "reference").string()});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  static void TearDownTestSuite() { fs::remove_all(root_); }

 protected:
  fs::path folder() const { return root_ / "reference" / GetParam(); }
  static fs::path root_;
};
fs::path TransformersTest::root_;

void expect_close(const at::Tensor& got, const at::Tensor& want, double rtol, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const double scale = want.abs().max().item<double>(), error = (got - want).abs().max().item<double>();
  EXPECT_LE(error, rtol * scale) << what << ", largest value " << scale;
}

std::vector<int64_t> to_vector(const at::Tensor& t) { return {t.const_data_ptr<int64_t>(), t.const_data_ptr<int64_t>() + t.numel()}; }

TEST_P(TransformersTest, LogitsLossAndEveryGradient) {
  const SafetensorsFile reference(folder() / "reference.tensors");
  for (const auto& [dtype, prefix, rtol] :
       {std::tuple{at::kDouble, std::string("f64"), 1e-9}, std::tuple{at::kFloat, std::string("f32"), 1e-5}}) {
    auto model = load_model(folder(), dtype);
    const at::Tensor ids = reference.read("ids"), labels = reference.read("labels");
    {
      at::NoGradGuard no_grad;
      expect_close(model->logits(ids), reference.read(prefix + ".logits"), rtol, prefix + " logits");
    }
    const LossSum loss = model->loss_sum(ids, labels);
    expect_close(loss.sum.detach(), reference.read(prefix + ".loss"), rtol, prefix + " loss");
    loss.sum.backward();
    size_t compared = 0;
    for (auto& [name, slot] : model->module().named_parameters()) {
      expect_close(slot->tensor.grad(), reference.read(prefix + ".grad." + name), rtol, prefix + " " + name);
      ++compared;
    }
    size_t expected = 0;
    for (const auto& [name, info] : reference.tensors()) expected += name.starts_with(prefix + ".grad.");
    EXPECT_EQ(compared, expected);
  }
}

TEST_P(TransformersTest, GreedyDecoding) {
  const SafetensorsFile reference(folder() / "reference.tensors");
  auto model = load_model(folder(), at::kDouble);
  std::vector<std::vector<int64_t>> prompts;
  for (int i = 0; i < 3; ++i) prompts.push_back(to_vector(reference.read(hp::str("prompt.", i))));
  const auto results = generate(*model, prompts, {.max_new_tokens = 16});
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(results[i].tokens, to_vector(reference.read(hp::str("greedy.", i)))) << "prompt " << i;
}

INSTANTIATE_TEST_SUITE_P(Cases, TransformersTest,
                         testing::Values("qwen3_gqa_tied", "qwen3_mha_untied_bias", "qwen3_mqa_bf16", "llama_gqa_untied_llama3",
                                         "llama_mha_tied_bias_linear", "llama_head_dim_f16"),
                         [](const auto& info) { return std::string(info.param); });

struct ExportCase {
  std::string name, type;
  nlohmann::json changes;
  at::ScalarType dtype = at::kFloat;
  int64_t max_file_bytes = 1 << 30;
};

void write_ours(const fs::path& folder, const ExportCase& one) {
  nlohmann::json config{
      {"vocab_size", 57},         {"hidden_size", 24},        {"intermediate_size", 40},  {"num_hidden_layers", 2},
      {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"initializer_range", 0.2}, {"max_position_embeddings", 64}};
  config.update(one.changes);
  auto model = make_model(one.type, config);
  materialize(model->module(), {.dtype = at::kDouble, .seed = 9});
  NamedTensors tensors;
  for (auto& [name, slot] : model->module().named_parameters()) tensors.emplace_back(name, slot->tensor);
  export_model(folder, model->config(), tensors, one.dtype, one.max_file_bytes);
  at::NoGradGuard no_grad;
  const at::Tensor ids = at::arange(22, at::kLong).view({2, 11});
  write_safetensors(folder / "ours.tensors", {{"ids", ids}, {"logits", load_model(folder, at::kDouble)->logits(ids)}});
}

TEST(TransformersReadsOursTest, OpensEveryFolderWithOurLogits) {
  const nlohmann::json llama3{{"rope_type", "llama3"},
                              {"factor", 4.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 16}};
  const std::vector<ExportCase> cases{
      {"qwen3_tied", "qwen3", {{"tie_word_embeddings", true}, {"head_dim", 8}, {"rope_theta", 1e6}}},
      {"qwen3_untied_bf16", "qwen3", {{"tie_word_embeddings", false}, {"head_dim", 10}}, at::kBFloat16},
      {"llama_files", "llama", {{"tie_word_embeddings", true}, {"attention_bias", true}, {"mlp_bias", true}}, at::kDouble, 9000},
      {"llama_rope_scaling", "llama", {{"rope_theta", 5e5}, {"rope_scaling", llama3}}, at::kHalf},
  };
  const fs::path root = fs::temp_directory_path() / hp::str("transformers_reads_ours_", getpid());
  for (const ExportCase& one : cases) write_ours(root / one.name, one);
  const Outcome outcome = test::run_python("transformers_reads_ours.py", {root.string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, testing::HasSubstr("ok 4"));
  fs::remove_all(root);
}

}  // namespace
}  // namespace hyper_parallel
