// SPDX-License-Identifier: Apache-2.0
// Reads YAML into a typed config. Every error is a ConfigError that says the full key path, the value, what is allowed, and file:line:
//
//   ConfigDocument document = ConfigDocument::load("run.yaml");
//   document.override_value("optimizer.lr=3e-4");             // the value is YAML
//   Config config = read_config<Config>(document);
//   throw document.error("fsdp_config.dp_shard_size", "3 does not divide 8");   // checks over several fields, by their owners
//
// Rejected: unknown keys (with the nearest known one), keys given twice, wrong types, values out of range, null where nothing may be null.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "hyper_parallel/base/config.h"
#include "hyper_parallel/base/error.h"

namespace hyper_parallel {

class ConfigDocument {
 public:
  static ConfigDocument load(const std::filesystem::path& path);
  // `name` stands for the file in messages.
  static ConfigDocument parse(const std::string& text, const std::string& name = "<text>");

  // "a.b=value" or "--a.b=value". Later read_config rejects the path if no such key exists.
  void override_value(const std::string& assignment);

  // "key: message" and, if the key (or its nearest parent) stands in the file, where.
  ConfigError error(const std::string& key_path, const std::string& message) const;

  void read(const std::function<void(ConfigVisitor&)>& fields) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

template <class T>
T read_config(const ConfigDocument& document) {
  T config;
  document.read([&](ConfigVisitor& visitor) { config.fields(visitor); });
  return config;
}

}  // namespace hyper_parallel
