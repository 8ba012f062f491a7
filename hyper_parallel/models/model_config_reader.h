// SPDX-License-Identifier: Apache-2.0
// Typed, checked access to a Hugging Face config.json (or the same keys from YAML). Every error is a ConfigError that names the file, the
// key, its value and what is allowed. No torch.
//
//   ModelConfigReader reader(json, "qwen3/config.json");
//   const int64_t hidden = reader.positive("hidden_size");
//   reader.allow("hidden_act", {"silu"});
//   reader.finish();   // a key near a known one is a typing mistake; other unknown keys are reported once and ignored
#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace hyper_parallel {

class ModelConfigReader {
 public:
  // `where` names the source in messages. ConfigError if `json` is not an object.
  ModelConfigReader(const nlohmann::json& json, std::string where);

  // Without a fallback the key is required. null counts as absent.
  int64_t positive(const std::string& key, std::optional<int64_t> fallback = {});
  double number(const std::string& key, std::optional<double> fallback = {});
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::string& fallback);
  // The section's reader, whose keys are reported as key.name; an empty object if absent.
  ModelConfigReader section(const std::string& key);
  bool has(const std::string& key);

  // For options that this library has one meaning of: absent, null or one of `values`, else ConfigError.
  void allow(const std::string& key, const std::vector<nlohmann::json>& values);
  // Keys that change nothing here (token ids, library versions).
  void ignore(std::initializer_list<const char*> keys);
  void finish() const;

  [[noreturn]] void fail(const std::string& key, const std::string& problem) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json* find(const std::string& key);
  nlohmann::json json_;
  std::string where_, prefix_;
  std::vector<std::string> known_;
};

}  // namespace hyper_parallel
