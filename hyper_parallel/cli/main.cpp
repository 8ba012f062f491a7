// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/log.h"
#include "hyper_parallel/cli/commands.h"
#include "hyper_parallel/nn/allocator.h"
#include "hyper_parallel/train/version.h"

namespace {

// CLI11 would only say that a subcommand is required.
void check_command(const CLI::App& app, const std::string& name) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands(nullptr)) known.push_back(command->get_name());
  if (name.starts_with('-') || std::find(known.begin(), known.end(), name) != known.end()) return;
  const std::string near = hp::nearest_name(name, known);
  throw hp::ConfigError(hp::str("unknown command \"", name, "\"", near.empty() ? "" : hp::str(" (did you mean \"", near, "\"?)"),
                                "; hyper-parallel --help lists them"));
}

int parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return -1;
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
}

}  // namespace

int hp::cli::report(std::exception_ptr cause) {
  try {
    std::rethrow_exception(std::move(cause));
  } catch (const Error& error) {
    std::fprintf(stderr, "%serror: %s\n", line_start(), error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%serror: %s\n", line_start(), error.what());
    return 1;
  }
}

int main(int argc, char** argv) {
  hp::keep_freed_memory();
  CLI::App app{"HyperParallel: distributed training and inference of language models"};
  app.name("hyper-parallel");
  app.set_version_flag("--version", hp::version_text());
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  hp::cli::Action action;
  hp::cli::add_train_command(app, action);
  hp::cli::add_generate_command(app, action);
  hp::cli::add_checkpoint_command(app, action);
  hp::cli::add_config_command(app, action);
  hp::cli::add_info_command(app, action);
  try {
    if (argc > 1) check_command(app, argv[1]);
    if (const int code = parse(app, argc, argv); code >= 0) return code;
    hp::check_torch_version();
    return action();
  } catch (const std::exception&) {
    return hp::cli::report(std::current_exception());
  }
}
