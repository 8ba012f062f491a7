// SPDX-License-Identifier: Apache-2.0
// The subcommands of `hyper-parallel`, one source each. A command adds itself to the app and stores what it will run in `action`, which
// returns the exit code: 0, 1 for failures at run time, 2 for the user's mistakes (thrown as Error).
#pragma once
#include <CLI/CLI.hpp>
#include <exception>
#include <functional>

namespace hyper_parallel::cli {

using Action = std::function<int()>;

void add_train_command(CLI::App& app, Action& action);
void add_generate_command(CLI::App& app, Action& action);
void add_checkpoint_command(CLI::App& app, Action& action);
void add_config_command(CLI::App& app, Action& action);
void add_info_command(CLI::App& app, Action& action);

// Prints the error and returns its exit code.
int report(std::exception_ptr cause);

}  // namespace hyper_parallel::cli
