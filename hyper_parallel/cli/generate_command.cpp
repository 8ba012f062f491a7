// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <utility>

#include "hyper_parallel/cli/commands.h"
#include "hyper_parallel/cli/dtype_option.h"
#include "hyper_parallel/train/model_folder.h"

namespace hyper_parallel::cli {
namespace {

struct Options {
  std::string model, prompt;
  std::string dtype = "float32";
  GenerateOptions generate;
};

int run(const Options& options) {
  const InferenceModel loaded = load_for_inference(options.model, parse_dtype(options.dtype));
  bool started = false;  // nothing is printed before the options are known to be good
  generate_text(*loaded.model, *loaded.tokenizer, options.prompt, options.generate, [&](const std::string& piece) {
    if (!std::exchange(started, true)) std::fputs(options.prompt.c_str(), stdout);
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
    return true;
  });
  std::fputc('\n', stdout);
  return 0;
}

}  // namespace

void add_generate_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate", "continue a prompt with a trained model");
  const auto options = std::make_shared<Options>();
  command->add_option("--model", options->model, "a run's folder, a checkpoint, or a Hugging Face folder")->required();
  command->add_option("--prompt", options->prompt, "text to continue")->required();
  command->add_option("--max-new-tokens", options->generate.max_new_tokens, "tokens to generate")->capture_default_str();
  command->add_option("--temperature", options->generate.sampling.temperature, "0: greedy")->capture_default_str();
  command->add_option("--top-k", options->generate.sampling.top_k, "sample among the k likeliest tokens; 0: all")->capture_default_str();
  command->add_option("--top-p", options->generate.sampling.top_p, "sample among the likeliest tokens that hold this probability")
      ->capture_default_str();
  command->add_option("--seed", options->generate.sampling.seed, "of the sampling")->capture_default_str();
  command->add_option("--dtype", options->dtype, "float32, float64, bfloat16 or float16")->capture_default_str();
  command->callback([=, &action] { action = [=] { return run(*options); }; });
}

}  // namespace hyper_parallel::cli
