// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "hyper_parallel/base/config_writer.h"
#include "hyper_parallel/cli/commands.h"
#include "hyper_parallel/train/train_config.h"

namespace hyper_parallel::cli {
namespace {

struct Options {
  std::string path;
};

LoadedConfig load(const CLI::App& command, const std::string& path) { return load_train_config(path, command.remaining()); }

void add_file(CLI::App& command, const std::shared_ptr<Options>& options) {
  command.add_option("config", options->path, "YAML file")->required();
  command.allow_extras();
  command.footer("Any key can be overridden: --section.key=value (the value is YAML).");
}

}  // namespace

void add_config_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("config", "check, show or describe a training configuration");
  command->require_subcommand(1);
  const auto options = std::make_shared<Options>();

  CLI::App* check = command->add_subcommand("check", "say whether a file is valid, key by key and together");
  add_file(*check, options);
  check->callback([=, &action] {
    action = [=] {
      const LoadedConfig loaded = load(*check, options->path);
      check_train_config(loaded, loaded.config.launcher.ranks);
      std::printf("%s: ok (%ld ranks)\n", options->path.c_str(), loaded.config.launcher.ranks);
      return 0;
    };
  });

  CLI::App* show = command->add_subcommand("show", "print the resolved file: every key, with defaults and overrides");
  add_file(*show, options);
  show->callback([=, &action] {
    action = [=] {
      std::fputs(config_yaml(load(*show, options->path).config).c_str(), stdout);
      return 0;
    };
  });

  CLI::App* schema = command->add_subcommand("schema", "print the JSON Schema, for completion and checks in editors");
  schema->callback([&action] {
    action = [] {
      std::printf("%s\n", config_schema<TrainConfig>("HyperParallel training").dump(2).c_str());
      return 0;
    };
  });

  CLI::App* docs = command->add_subcommand("docs", "print docs/configuration.md");
  docs->callback([&action] {
    action = [] {
      std::printf(
          "# Configuration\n\nEvery key of a training file, made by `hyper-parallel config docs`. Unknown keys are errors; "
          "`--section.key=value` overrides one.\n\n%s",
          config_markdown<TrainConfig>().c_str());
      return 0;
    };
  });
}

}  // namespace hyper_parallel::cli
