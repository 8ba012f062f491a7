// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/config_reader.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <set>

namespace hyper_parallel {
namespace {

std::string join_path(const std::string& prefix, const std::string& name) { return prefix.empty() ? name : prefix + "." + name; }

std::string shown(const YAML::Node& node) {
  if (node.IsNull()) return "null";
  if (node.IsMap()) return "a map";
  if (node.IsSequence()) return "a list";
  return "\"" + node.Scalar() + "\"";
}

std::string range_text(const FieldInfo& info) {
  const bool low = std::isfinite(info.min), high = std::isfinite(info.max);
  const char* least = info.above_min ? "> " : ">= ";
  if (low && high) return str(least, info.min, " and <= ", info.max);
  return low ? str(least, info.min) : str("<= ", info.max);
}

// A plain scalar is untagged ("?"); a quoted one ("!") is a string whatever it looks like.
bool is_plain(const YAML::Node& node) { return node.IsScalar() && node.Tag() != "!"; }

template <class T>
std::optional<T> parse_number(const YAML::Node& node) {
  if (!is_plain(node)) return std::nullopt;
  std::string text = node.Scalar();
  if constexpr (std::is_integral_v<T>) std::erase(text, '_');
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  T value{};
  const auto [stop, status] = std::from_chars(begin, end, value);
  if (status != std::errc() || stop != end || begin == end) return std::nullopt;
  return value;
}

// The path below `node` of a key that stands twice in one map; "" if there is none.
std::string duplicate_key(const YAML::Node& node) {
  std::set<std::string> seen;
  if (!node.IsMap()) return "";
  for (const auto& item : node) {
    const std::string& key = item.first.Scalar();
    if (!seen.insert(key).second) return key;
    if (const std::string below = duplicate_key(item.second); !below.empty()) return join_path(key, below);
  }
  return "";
}

nlohmann::ordered_json to_json(const YAML::Node& node) {
  if (node.IsNull()) return nullptr;
  if (node.IsSequence()) {
    auto list = nlohmann::ordered_json::array();
    for (const auto& item : node) list.push_back(to_json(item));
    return list;
  }
  if (node.IsMap()) {
    auto map = nlohmann::ordered_json::object();
    for (const auto& item : node) map[item.first.Scalar()] = to_json(item.second);
    return map;
  }
  if (is_plain(node)) {
    const std::string& text = node.Scalar();
    if (text == "true" || text == "false") return text == "true";
    if (auto integer = parse_number<int64_t>(node)) return *integer;
    if (auto number = parse_number<double>(node)) return *number;
  }
  return node.Scalar();
}

}  // namespace

struct ConfigDocument::Impl {
  YAML::Node root;
  std::string name;
  std::set<std::string> overridden;

  // Keys that an override made have no mark.
  bool in_file(const std::string& first_key) const {
    for (const auto& item : root)
      if (item.first.Scalar() == first_key) return !item.first.Mark().is_null();
    return true;
  }

  std::string location(const std::string& key_path) const {
    for (const std::string& path : overridden)
      if (path == key_path || (path.starts_with(key_path + ".") && !in_file(key_path)))
        return str("\n  from the command line: --", path, "=...");
    YAML::Mark mark = root.Mark();
    YAML::Node at = root;
    for (const std::string& part : split(key_path, '.')) {
      if (!at.IsMap()) break;
      bool found = false;
      for (const auto& item : at) {
        if (item.first.Scalar() != part) continue;
        mark = item.first.Mark();
        at.reset(item.second);
        found = true;
        break;
      }
      if (!found) break;
    }
    return mark.is_null() ? str("\n  in ", name) : str("\n  in ", name, ":", mark.line + 1);
  }
};

namespace {

class Reader final : public ConfigVisitor {
 public:
  Reader(const ConfigDocument& document, YAML::Node root) : document_(document) { enter("", std::move(root)); }
  void finish() { end_section(); }

  void field(const char* name, bool& value, const FieldInfo& info) override {
    const YAML::Node node = take(name, info);
    if (!node) return;
    const bool plain = is_plain(node);
    if (plain && node.Scalar() == "true")
      value = true;
    else if (plain && node.Scalar() == "false")
      value = false;
    else
      fail(name, str("expected true or false, got ", shown(node)));
  }
  void field(const char* name, int64_t& value, const FieldInfo& info) override {
    if (const YAML::Node node = take(name, info)) value = number<int64_t>(name, node, info, "an integer");
  }
  void field(const char* name, double& value, const FieldInfo& info) override {
    if (const YAML::Node node = take(name, info)) value = number<double>(name, node, info, "a number");
  }
  void field(const char* name, std::string& value, const FieldInfo& info) override {
    if (const YAML::Node node = take(name, info)) value = text(name, node, info);
  }
  void field(const char* name, std::optional<int64_t>& value, const FieldInfo& info) override {
    const YAML::Node node = take(name, info);
    if (node && node.IsNull())
      value.reset();
    else if (node)
      value = number<int64_t>(name, node, info, "an integer or null");
  }
  void field(const char* name, std::optional<std::string>& value, const FieldInfo& info) override {
    const YAML::Node node = take(name, info);
    if (node && node.IsNull())
      value.reset();
    else if (node)
      value = text(name, node, info);
  }
  void field(const char* name, std::vector<double>& value, const FieldInfo& info) override {
    list(name, value, info, [&](const YAML::Node& item) { return number<double>(name, item, info, "a list of numbers"); });
  }
  void field(const char* name, std::vector<std::string>& value, const FieldInfo& info) override {
    list(name, value, info, [&](const YAML::Node& item) { return text(name, item, info); });
  }
  void field(const char* name, nlohmann::ordered_json& value, const FieldInfo& info) override {
    const YAML::Node node = take(name, info);
    if (!node) return;
    if (!node.IsMap() && !node.IsNull()) fail(name, str("expected a map, got ", shown(node)));
    if (const std::string twice = duplicate_key(node); !twice.empty()) throw document_.error(join_path(path(name), twice), "given twice");
    value = node.IsNull() ? nlohmann::ordered_json::object() : to_json(node);
  }

 protected:
  bool begin_section(const char* name, const std::string&) override {
    levels_.back().known.emplace_back(name);
    const YAML::Node node = find(name);
    if (node && !node.IsMap() && !node.IsNull()) fail(name, str("expected a map, got ", shown(node)));
    enter(path(name), node && node.IsMap() ? node : YAML::Node(YAML::NodeType::Map));
    return true;
  }
  void end_section() override {
    const Level level = std::move(levels_.back());
    levels_.pop_back();
    for (const auto& item : level.node) {
      const std::string& key = item.first.Scalar();
      if (std::find(level.known.begin(), level.known.end(), key) != level.known.end()) continue;
      const std::string near = nearest_name(key, level.known);
      const std::string hint = near.empty() ? str("(known here: ", join(level.known, ", "), ")") : str("(did you mean \"", near, "\"?)");
      throw document_.error(join_path(level.path, key), str("unknown key ", hint));
    }
  }

 private:
  struct Level {
    std::string path;
    YAML::Node node;
    std::vector<std::string> known;
  };

  void enter(std::string path, YAML::Node node) {
    std::set<std::string> seen;
    for (const auto& item : node)
      if (!seen.insert(item.first.Scalar()).second) throw document_.error(join_path(path, item.first.Scalar()), "given twice");
    levels_.push_back({std::move(path), std::move(node), {}});
  }
  std::string path(const char* name) const { return join_path(levels_.back().path, name); }
  [[noreturn]] void fail(const char* name, const std::string& message) const { throw document_.error(path(name), message); }

  YAML::Node find(const char* name) const {
    for (const auto& item : levels_.back().node)
      if (item.first.Scalar() == name) return item.second;
    return YAML::Node(YAML::NodeType::Undefined);
  }
  YAML::Node take(const char* name, const FieldInfo& info) {
    levels_.back().known.emplace_back(name);
    YAML::Node node = find(name);
    if (!node && info.required) fail(name, "required, but not given");
    return node;
  }

  template <class T>
  T number(const char* name, const YAML::Node& node, const FieldInfo& info, const char* expected) const {
    const std::optional<T> value = parse_number<T>(node);
    if (!value) fail(name, str("expected ", expected, ", got ", shown(node)));
    const bool low = info.above_min ? *value <= info.min : *value < info.min;
    if (low || *value > info.max || *value != *value) fail(name, str(node.Scalar(), " is out of range (allowed: ", range_text(info), ")"));
    return *value;
  }
  std::string text(const char* name, const YAML::Node& node, const FieldInfo& info) const {
    if (!node.IsScalar()) fail(name, str("expected text, got ", shown(node)));
    const std::string value = node.Scalar();
    if (info.allowed.empty() || std::find(info.allowed.begin(), info.allowed.end(), value) != info.allowed.end()) return value;
    fail(name, str("unknown value \"", value, "\" (allowed: ", join(info.allowed, ", "), ")"));
  }
  template <class T, class Convert>
  void list(const char* name, std::vector<T>& value, const FieldInfo& info, const Convert& convert) {
    const YAML::Node node = take(name, info);
    if (!node) return;
    if (!node.IsSequence()) fail(name, str("expected a list, got ", shown(node)));
    value.clear();
    for (const auto& item : node) value.push_back(convert(item));
  }

  const ConfigDocument& document_;
  std::vector<Level> levels_;
};

YAML::Node parse_root(const std::string& text, const std::string& name) {
  try {
    YAML::Node root = YAML::Load(text);
    if (root.IsNull() || !root.IsDefined()) return YAML::Node(YAML::NodeType::Map);
    if (!root.IsMap()) throw ConfigError(str(name, ":1: expected a map of keys at the top, got ", shown(root)));
    return root;
  } catch (const YAML::Exception& error) {
    throw ConfigError(str(name, ":", error.mark.line + 1, ":", error.mark.column + 1, ": not valid YAML: ", error.msg));
  }
}

}  // namespace

ConfigDocument ConfigDocument::parse(const std::string& text, const std::string& name) {
  ConfigDocument document;
  document.impl_ = std::make_shared<Impl>(Impl{parse_root(text, name), name, {}});
  return document;
}

ConfigDocument ConfigDocument::load(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) throw ConfigError(str("cannot read the configuration file ", path.string()));
  std::ostringstream text;
  text << file.rdbuf();
  return parse(text.str(), path.string());
}

void ConfigDocument::override_value(const std::string& assignment) {
  const std::string_view text = std::string_view(assignment).substr(assignment.starts_with("--") ? 2 : 0);
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0)
    throw ConfigError(str("override \"", assignment, "\": expected --section.key=value"));
  const std::string key(text.substr(0, equals));
  YAML::Node value;
  try {
    value = YAML::Load(std::string(text.substr(equals + 1)));
  } catch (const YAML::Exception& error) {
    throw ConfigError(str("override --", key, ": the value is not valid YAML: ", error.msg));
  }
  const std::vector<std::string> parts = split(key, '.');
  YAML::Node at = impl_->root;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (at[parts[i]].IsDefined() && !at[parts[i]].IsMap() && !at[parts[i]].IsNull())
      throw ConfigError(str("override --", key, ": ", parts[i], " is not a section"));
    if (!at[parts[i]].IsMap()) at[parts[i]] = YAML::Node(YAML::NodeType::Map);
    at.reset(at[parts[i]]);
  }
  at[parts.back()] = value;
  impl_->overridden.insert(key);
}

ConfigError ConfigDocument::error(const std::string& key_path, const std::string& message) const {
  return ConfigError(str(key_path, ": ", message, impl_->location(key_path)));
}

void ConfigDocument::read(const std::function<void(ConfigVisitor&)>& fields) const {
  Reader reader(*this, impl_->root);
  fields(reader);
  reader.finish();
}

}  // namespace hyper_parallel
