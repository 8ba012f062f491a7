// SPDX-License-Identifier: Apache-2.0
// What follows from a config's fields: the resolved YAML, the JSON Schema for editors, and the Markdown table of docs/configuration.md.
//
//   std::string text = config_yaml(config);            // reads back to an equal config
//   nlohmann::ordered_json schema = config_schema<TrainConfig>("HyperParallel training");
#pragma once
#include <functional>
#include <string>

#include "hyper_parallel/base/config.h"

namespace hyper_parallel {

using ConfigFields = std::function<void(ConfigVisitor&)>;

std::string config_yaml(const ConfigFields& fields);
nlohmann::ordered_json config_schema(const ConfigFields& fields, const std::string& title);
// One heading and one table per section: key, type, default, meaning.
std::string config_markdown(const ConfigFields& fields);

template <class T>
std::string config_yaml(const T& config) {
  T copy = config;
  return config_yaml(ConfigFields([&](ConfigVisitor& visitor) { copy.fields(visitor); }));
}
template <class T>
nlohmann::ordered_json config_schema(const std::string& title) {
  T config;
  return config_schema([&](ConfigVisitor& visitor) { config.fields(visitor); }, title);
}
template <class T>
std::string config_markdown() {
  T config;
  return config_markdown([&](ConfigVisitor& visitor) { config.fields(visitor); });
}

}  // namespace hyper_parallel
