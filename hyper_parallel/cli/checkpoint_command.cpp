// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "hyper_parallel/cli/commands.h"
#include "hyper_parallel/cli/dtype_option.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"
#include "hyper_parallel/train/model_folder.h"

namespace hyper_parallel::cli {
namespace {

struct Options {
  std::string path, output;
  std::string dtype = "float32";
  bool pieces = false;
};

std::filesystem::path resolve(const std::string& path) {
  const std::filesystem::path found = find_checkpoint(path);
  if (found.empty())
    throw CheckpointError(str(path, " is neither a checkpoint (", kCheckpointMetadataFile, ") nor a folder with checkpoints (LATEST)"));
  return found;
}

int inspect(const Options& options) {
  const std::filesystem::path folder = resolve(options.path);
  const CheckpointMetadata metadata = inspect_checkpoint(folder);
  std::printf("%s: %zu tensors, %ld bytes, saved by %d ranks in %zu files\n", folder.c_str(), metadata.tensors.size(), metadata.num_bytes(),
              metadata.num_ranks, metadata.files.size());
  std::printf("extra: %s\n", metadata.extra.dump().c_str());
  for (const CheckpointTensor& tensor : metadata.tensors) {
    std::printf("%-60s %-5s %s\n", tensor.name.c_str(), safetensors_name(tensor.dtype), bracketed(tensor.sizes).c_str());
    if (!options.pieces) continue;
    for (const CheckpointPiece& piece : tensor.pieces)
      std::printf("    %s: offsets %s sizes %s\n", metadata.files.at(piece.file).name.c_str(), bracketed(piece.box.offsets).c_str(),
                  bracketed(piece.box.sizes).c_str());
  }
  return 0;
}

int verify(const Options& options) {
  const std::filesystem::path folder = resolve(options.path);
  const std::vector<std::string> problems = verify_checkpoint(folder);
  for (const std::string& problem : problems) std::fprintf(stderr, "%s\n", problem.c_str());
  if (!problems.empty()) throw CheckpointError(str(folder.string(), ": ", problems.size(), " problems"));
  std::printf("%s: ok\n", folder.c_str());
  return 0;
}

int export_model_folder(const Options& options) {
  const std::filesystem::path folder = resolve(options.path);
  export_checkpoint(folder, options.output, parse_dtype(options.dtype));
  std::printf("%s -> %s\n", folder.c_str(), options.output.c_str());
  return 0;
}

CLI::App* add(CLI::App& parent, const char* name, const char* text, const std::shared_ptr<Options>& options, Action& action,
              int (*run)(const Options&)) {
  CLI::App* command = parent.add_subcommand(name, text);
  command->add_option("path", options->path, "a checkpoint, or a run's folder for its newest one")->required();
  command->callback([=, &action] { action = [=] { return run(*options); }; });
  return command;
}

}  // namespace

void add_checkpoint_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("checkpoint", "look into, check or export a checkpoint");
  command->require_subcommand(1);
  const auto options = std::make_shared<Options>();
  add(*command, "inspect", "print tensors, shapes and counters", options, action, inspect)
      ->add_flag("--pieces", options->pieces, "also which box lies in which file");
  add(*command, "verify", "read everything and compare checksums; exit code 2 if something is damaged", options, action, verify);
  CLI::App* exporter = add(*command, "export", "write the model as a Hugging Face folder", options, action, export_model_folder);
  exporter->add_option("--output", options->output, "folder to write")->required();
  exporter->add_option("--dtype", options->dtype, "float32, float64, bfloat16 or float16")->capture_default_str();
}

}  // namespace hyper_parallel::cli
