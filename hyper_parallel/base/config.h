// SPDX-License-Identifier: Apache-2.0
// Typed configuration. A struct names its fields once; reading YAML, overrides, the resolved dump, the JSON Schema and the docs follow.
//
//   struct OptimizerConfig {
//     double lr = 1e-3;
//     std::string type = "adamw";
//     void fields(ConfigVisitor& v) {
//       v.field("lr", lr, {.doc = "Peak learning rate.", .min = 0});
//       v.field("type", type, {.doc = "Optimizer.", .allowed = {"adamw"}});
//     }
//   };
//   struct Config { OptimizerConfig optimizer; void fields(ConfigVisitor& v) { v.section("optimizer", optimizer, "The optimizer."); } };
//   Config config = read_config<Config>(ConfigDocument::load("run.yaml"));   // config_reader.h
#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace hyper_parallel {

struct FieldInfo {
  std::string doc;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;                 // min itself is not allowed
  std::vector<std::string> allowed = {};  // for strings; empty = anything
  bool required = false;                  // no default: must be given
};

// The types that a field can have. An optional is null or absent when empty; json is a free map that others check.
class ConfigVisitor {
 public:
  virtual ~ConfigVisitor() = default;
  virtual void field(const char* name, bool& value, const FieldInfo& info) = 0;
  virtual void field(const char* name, int64_t& value, const FieldInfo& info) = 0;
  virtual void field(const char* name, double& value, const FieldInfo& info) = 0;
  virtual void field(const char* name, std::string& value, const FieldInfo& info) = 0;
  virtual void field(const char* name, std::optional<int64_t>& value, const FieldInfo& info) = 0;
  virtual void field(const char* name, std::optional<std::string>& value, const FieldInfo& info) = 0;
  virtual void field(const char* name, std::vector<double>& value, const FieldInfo& info) = 0;
  virtual void field(const char* name, std::vector<std::string>& value, const FieldInfo& info) = 0;
  virtual void field(const char* name, nlohmann::ordered_json& value, const FieldInfo& info) = 0;

  template <class T>
  void section(const char* name, T& value, const std::string& doc) {
    if (!begin_section(name, doc)) return;
    value.fields(*this);
    end_section();
  }

 protected:
  virtual bool begin_section(const char* name, const std::string& doc) = 0;  // false: skip it, without end_section
  virtual void end_section() = 0;
};

}  // namespace hyper_parallel
