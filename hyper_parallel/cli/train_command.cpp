// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>

#include "hyper_parallel/cli/commands.h"
#include "hyper_parallel/collectives/launcher.h"
#include "hyper_parallel/train/train_data.h"
#include "hyper_parallel/train/trainer.h"

namespace hyper_parallel::cli {
namespace {

struct Options {
  std::string path;
  std::optional<int64_t> ranks;
  std::optional<std::string> rank_mode;
};

LoadedConfig load(const Options& options, std::vector<std::string> overrides) {
  if (options.ranks) overrides.push_back(str("--launcher.ranks=", *options.ranks));
  if (options.rank_mode) overrides.push_back("--launcher.rank_mode=" + *options.rank_mode);
  return load_train_config(options.path, overrides);
}

WorldOptions world_options(const LauncherConfig& launcher) {
  return {.backend = launcher.backend, .timeout = std::chrono::seconds(launcher.timeout_seconds), .abandon = [](std::exception_ptr cause) {
            std::_Exit(report(std::move(cause)));
          }};
}

int exit_code(int signal) { return signal == 0 ? 0 : 128 + signal; }

// A rank whose launcher (ours, torchrun, srun, mpirun) has set its environment.
int run_rank(const LoadedConfig& loaded) {
  const World world = World::from_environment(world_options(loaded.config.launcher));
  check_train_config(loaded, world.size());
  return exit_code(Trainer(world, loaded).run());
}

int run_as_threads(const LoadedConfig& loaded) {
  int signal = 0;
  run_threads(
      static_cast<int>(loaded.config.launcher.ranks),
      [&](World& world) {
        const int mine = Trainer(world, loaded).run();
        if (world.rank() == 0) signal = mine;
      },
      world_options(loaded.config.launcher));
  return exit_code(signal);
}

int train(const Options& options, const std::vector<std::string>& overrides) {
  const LoadedConfig loaded = load(options, overrides);
  const LauncherConfig& launcher = loaded.config.launcher;
  handle_interrupts();
  if (World::launched()) return run_rank(loaded);
  check_train_config(loaded, launcher.ranks);
  check_train_data(loaded);
  if (launcher.rank_mode == "threads" || launcher.ranks == 1) return run_as_threads(loaded);
  return launch_processes({.num_ranks = static_cast<int>(launcher.ranks),
                           .child = [&] { return run_rank(loaded); },
                           .stop_grace = std::chrono::seconds(launcher.timeout_seconds)});
}

}  // namespace

void add_train_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("train", "train a model from a YAML file, save checkpoints, sample from it");
  const auto options = std::make_shared<Options>();
  command->add_option("config", options->path, "YAML file; docs/configuration.md lists the keys")->required();
  command->add_option("--ranks", options->ranks, "ranks to start (launcher.ranks)");
  command->add_option("--rank-mode", options->rank_mode, "threads of this process, or local processes (launcher.rank_mode)");
  command->allow_extras();
  command->footer(
      "Any key can be overridden: --section.key=value (the value is YAML).\n"
      "Under torchrun, srun or mpirun this process is one rank of theirs and --ranks is ignored.\n"
      "Exit codes: 0 done, 1 failed while running, 2 wrong input, 128+N ended by signal N after saving.");
  command->callback([=, &action] { action = [=] { return train(*options, command->remaining()); }; });
}

}  // namespace hyper_parallel::cli
