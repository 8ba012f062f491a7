// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <nlohmann/json.hpp>

#include "hyper_parallel/base/string.h"
#include "hyper_parallel/cli/commands.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/data/tokenizer.h"
#include "hyper_parallel/models/causal_lm.h"
#include "hyper_parallel/optim/lr_schedule.h"
#include "hyper_parallel/optim/optimizer.h"
#include "hyper_parallel/shard/registry.h"
#include "hyper_parallel/train/version.h"

namespace hyper_parallel::cli {
namespace {

template <class Infos>
nlohmann::ordered_json names_of(const Infos& infos) {
  auto names = nlohmann::ordered_json::array();
  for (const auto& info : infos) names.push_back(info.name);
  return names;
}

nlohmann::ordered_json collect() {
  return {{"version", version_text()},
          {"libtorch", {{"built", built_torch_version()}, {"loaded", loaded_torch_version()}}},
          {"backends", backend_names()},
          {"models", model_names()},
          {"optimizers", names_of(registered_optimizers())},
          {"lr_schedulers", names_of(registered_lr_schedules())},
          {"tokenizers", tokenizer_names()},
          {"ops", registered_ops()}};
}

void print_text(const nlohmann::ordered_json& info) {
  for (const auto& [key, value] : info.items()) {
    std::string text;
    if (value.is_string())
      text = value.get<std::string>();
    else if (value.is_object())
      text = str("built for ", value["built"].get<std::string>(), ", loaded ", value["loaded"].get<std::string>());
    else
      for (const auto& item : value) text += (text.empty() ? "" : ", ") + item.get<std::string>();
    std::printf("%-14s %s\n", key.c_str(), text.c_str());
  }
}

}  // namespace

void add_info_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("info", "print versions and what is registered: backends, models, optimizers, ops");
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "print one JSON object");
  command->callback([=, &action] {
    action = [=] {
      const nlohmann::ordered_json info = collect();
      if (*as_json)
        std::printf("%s\n", info.dump(2).c_str());
      else
        print_text(info);
      return 0;
    };
  });
}

}  // namespace hyper_parallel::cli
