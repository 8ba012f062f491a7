// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/models/model_config_reader.h"

#include <algorithm>
#include <cmath>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/log.h"

namespace hyper_parallel {

ModelConfigReader::ModelConfigReader(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {
  if (!json_.is_object()) throw ConfigError(str(where_, ": ", json_.dump(), " is no model configuration (allowed: an object of keys)"));
}

const nlohmann::json* ModelConfigReader::find(const std::string& key) {
  known_.push_back(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

void ModelConfigReader::fail(const std::string& key, const std::string& problem) const {
  throw ConfigError(str(where_, ": ", prefix_, key, ": ", problem));
}

bool ModelConfigReader::has(const std::string& key) { return find(key) != nullptr; }

int64_t ModelConfigReader::positive(const std::string& key, std::optional<int64_t> fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr) {
    std::vector<std::string> present;
    for (const auto& item : json_.items())
      if (item.key() != key) present.push_back(item.key());
    const std::string near = nearest_name(key, present);
    fail(key, "missing (a whole number above 0)" + (near.empty() ? "" : "; found " + near));
  }
  if (!value->is_number_integer() || value->get<int64_t>() <= 0) fail(key, str(value->dump(), " (allowed: a whole number above 0)"));
  return value->get<int64_t>();
}

double ModelConfigReader::number(const std::string& key, std::optional<double> fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr) fail(key, "missing (a number)");
  if (!value->is_number() || !std::isfinite(value->get<double>())) fail(key, str(value->dump(), " (allowed: a number)"));
  return value->get<double>();
}

bool ModelConfigReader::boolean(const std::string& key, bool fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(key, str(value->dump(), " (allowed: true, false)"));
  return value->get<bool>();
}

std::string ModelConfigReader::text(const std::string& key, const std::string& fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fail(key, str(value->dump(), " (allowed: a string)"));
  return value->get<std::string>();
}

ModelConfigReader ModelConfigReader::section(const std::string& key) {
  const nlohmann::json* value = find(key);
  if (value != nullptr && !value->is_object()) fail(key, str(value->dump(), " (allowed: an object of keys)"));
  ModelConfigReader inner(value == nullptr ? nlohmann::json::object() : *value, where_);
  inner.prefix_ = prefix_ + key + ".";
  return inner;
}

void ModelConfigReader::allow(const std::string& key, const std::vector<nlohmann::json>& values) {
  const nlohmann::json* value = find(key);
  if (value == nullptr || std::find(values.begin(), values.end(), *value) != values.end()) return;
  std::vector<std::string> names;
  for (const auto& allowed : values) names.push_back(allowed.dump());
  fail(key, str(value->dump(), " is not supported (allowed: ", join(names, ", "), ")"));
}

void ModelConfigReader::ignore(std::initializer_list<const char*> keys) { known_.insert(known_.end(), keys.begin(), keys.end()); }

void ModelConfigReader::finish() const {
  for (const auto& item : json_.items()) {
    const std::string& key = item.key();
    if (key.starts_with('_') || std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string near = nearest_name(key, known_);
    if (!near.empty()) fail(key, str("unknown key; did you mean ", prefix_, near, "?"));
    log_warning(where_, ": ", prefix_, key, ": unknown key, ignored");
  }
}

}  // namespace hyper_parallel
