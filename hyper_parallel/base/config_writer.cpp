// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/config_writer.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>

#include "hyper_parallel/base/string.h"

namespace hyper_parallel {
namespace {

using Json = nlohmann::ordered_json;

// The shortest text that reads back to the same number, and never looks like an integer.
std::string number_text(double value) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, result.ptr);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

// Turns every kind of field into one call: name, JSON value, type name, whether it may be null.
class JsonVisitor : public ConfigVisitor {
 public:
  void field(const char* name, bool& value, const FieldInfo& info) override { put(name, value, "boolean", false, info); }
  void field(const char* name, int64_t& value, const FieldInfo& info) override { put(name, value, "integer", false, info); }
  void field(const char* name, double& value, const FieldInfo& info) override { put(name, value, "number", false, info); }
  void field(const char* name, std::string& value, const FieldInfo& info) override { put(name, value, "string", false, info); }
  void field(const char* name, std::optional<int64_t>& value, const FieldInfo& info) override {
    put(name, value ? Json(*value) : Json(nullptr), "integer", true, info);
  }
  void field(const char* name, std::optional<std::string>& value, const FieldInfo& info) override {
    put(name, value ? Json(*value) : Json(nullptr), "string", true, info);
  }
  void field(const char* name, std::vector<double>& value, const FieldInfo& info) override { put(name, value, "number[]", false, info); }
  void field(const char* name, std::vector<std::string>& value, const FieldInfo& info) override {
    put(name, value, "string[]", false, info);
  }
  void field(const char* name, Json& value, const FieldInfo& info) override {
    put(name, value.is_null() ? Json::object() : value, "object", false, info);
  }

 protected:
  virtual void put(const char* name, Json value, const std::string& type, bool nullable, const FieldInfo& info) = 0;
};

void emit(YAML::Emitter& out, const Json& value) {
  if (value.is_null())
    out << YAML::Null;
  else if (value.is_boolean())
    out << (value.get<bool>() ? "true" : "false");
  else if (value.is_number_integer())
    out << value.get<int64_t>();
  else if (value.is_number())
    out << number_text(value.get<double>());
  else if (value.is_string())
    out << YAML::DoubleQuoted << value.get<std::string>();
  else if (value.is_array()) {
    out << YAML::Flow << YAML::BeginSeq;
    for (const Json& item : value) emit(out, item);
    out << YAML::EndSeq;
  } else {
    out << YAML::BeginMap;
    for (const auto& [key, item] : value.items()) {
      out << YAML::Key << key << YAML::Value;
      emit(out, item);
    }
    out << YAML::EndMap;
  }
}

class YamlWriter final : public JsonVisitor {
 public:
  YamlWriter() { out_ << YAML::BeginMap; }
  std::string text() {
    out_ << YAML::EndMap;
    return std::string(out_.c_str()) + "\n";
  }

 protected:
  void put(const char* name, Json value, const std::string&, bool, const FieldInfo&) override {
    out_ << YAML::Key << name << YAML::Value;
    emit(out_, value);
  }
  bool begin_section(const char* name, const std::string&) override {
    out_ << YAML::Key << name << YAML::Value << YAML::BeginMap;
    return true;
  }
  void end_section() override { out_ << YAML::EndMap; }

 private:
  YAML::Emitter out_;
};

class SchemaWriter final : public JsonVisitor {
 public:
  explicit SchemaWriter(const std::string& title) {
    stack_.push_back(object(title));
    stack_.back()["$schema"] = "http://json-schema.org/draft-07/schema#";
  }
  Json schema() { return stack_.back(); }

 protected:
  void put(const char* name, Json value, const std::string& type, bool nullable, const FieldInfo& info) override {
    Json entry = {{"description", info.doc}};
    if (type.ends_with("[]"))
      entry.update({{"type", "array"}, {"items", {{"type", type.substr(0, type.size() - 2)}}}});
    else
      entry["type"] = nullable ? Json({type, "null"}) : Json(type);
    if (!info.allowed.empty()) {
      Json& allowed = type.ends_with("[]") ? entry["items"]["enum"] : entry["enum"];
      allowed = info.allowed;
      if (nullable) allowed.push_back(nullptr);
    }
    Json& numbers = type.ends_with("[]") ? entry["items"] : entry;
    if (std::isfinite(info.min)) numbers[info.above_min ? "exclusiveMinimum" : "minimum"] = info.min;
    if (std::isfinite(info.max)) numbers["maximum"] = info.max;
    if (info.required)
      stack_.back()["required"].push_back(name);
    else
      entry["default"] = std::move(value);
    stack_.back()["properties"][name] = std::move(entry);
  }
  bool begin_section(const char* name, const std::string& doc) override {
    names_.emplace_back(name);
    stack_.push_back(object(doc));
    return true;
  }
  void end_section() override {
    Json done = std::move(stack_.back());
    stack_.pop_back();
    stack_.back()["properties"][names_.back()] = std::move(done);
    names_.pop_back();
  }

 private:
  static Json object(const std::string& text) {
    return {{"description", text}, {"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
  }
  std::vector<Json> stack_;
  std::vector<std::string> names_;
};

class MarkdownWriter final : public JsonVisitor {
 public:
  std::string text() const { return join(sections_, "\n"); }

 protected:
  void put(const char* name, Json value, const std::string& type, bool nullable, const FieldInfo& info) override {
    std::string meaning = info.doc;
    if (!info.allowed.empty()) meaning += str(" One of `", join(info.allowed, "`, `"), "`.");
    const std::string fallback =
        info.required ? "required" : str("`", value.is_number_float() ? number_text(value.get<double>()) : value.dump(), "`");
    row(str("| `", name, "` | ", type, nullable ? " or null" : "", " | ", fallback, " | ", meaning, " |\n"));
  }
  bool begin_section(const char* name, const std::string& doc) override {
    path_.emplace_back(name);
    open_.push_back(sections_.size());
    sections_.push_back(str("## `", join(path_, "."), "`\n\n", doc, "\n\n", kHead));
    return true;
  }
  void end_section() override {
    path_.pop_back();
    open_.pop_back();
  }

 private:
  static constexpr const char* kHead = "| key | type | default | meaning |\n|---|---|---|---|\n";
  void row(const std::string& text) {
    if (open_.empty()) {
      open_.push_back(sections_.size());
      sections_.push_back(str("## Top level\n\n", kHead));
    }
    sections_[open_.back()] += text;
  }
  std::vector<std::string> path_, sections_;
  std::vector<size_t> open_;
};

}  // namespace

std::string config_yaml(const ConfigFields& fields) {
  YamlWriter writer;
  fields(writer);
  return writer.text();
}

Json config_schema(const ConfigFields& fields, const std::string& title) {
  SchemaWriter writer(title);
  fields(writer);
  return writer.schema();
}

std::string config_markdown(const ConfigFields& fields) {
  MarkdownWriter writer;
  fields(writer);
  return writer.text();
}

}  // namespace hyper_parallel
