// SPDX-License-Identifier: Apache-2.0
#include "tests/composition/support/rows.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::composition {
namespace {

const std::set<std::string> kKnown = {
    "name",     "model", "model_overrides",   "replicate",    "fsdp", "steps", "dtype", "accumulation", "reshard_after_forward", "labels",
    "prefetch", "tp",    "sequence_parallel", "loss_parallel"};

nlohmann::json to_json(const YAML::Node& node) {
  if (node.IsMap()) {
    nlohmann::json map = nlohmann::json::object();
    for (const auto& item : node) map[item.first.as<std::string>()] = to_json(item.second);
    return map;
  }
  if (node.IsSequence()) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& item : node) list.push_back(to_json(item));
    return list;
  }
  return nlohmann::json::parse(node.Scalar(), nullptr, false).is_discarded() ? nlohmann::json(node.Scalar())
                                                                             : nlohmann::json::parse(node.Scalar());
}

// One object per combination of the lists' items; the name grows by the items.
std::vector<nlohmann::json> expand(const nlohmann::json& row) {
  std::vector<nlohmann::json> all = {row};
  for (const auto& [key, value] : row.items()) {
    if (!value.is_array()) continue;
    std::vector<nlohmann::json> next;
    for (const nlohmann::json& partial : all)
      for (const nlohmann::json& item : value) {
        nlohmann::json one = partial;
        one[key] = item;
        one["name"] = one["name"].get<std::string>() + "_" + key + "_" + (item.is_string() ? item.get<std::string>() : item.dump());
        next.push_back(std::move(one));
      }
    all = std::move(next);
  }
  return all;
}

Row to_row(const nlohmann::json& source, const nlohmann::json& models) {
  for (const auto& [key, value] : source.items())
    if (!kKnown.contains(key)) throw ConfigError(str("composition row ", source["name"].dump(), ": unknown key ", key));
  Row row;
  row.name = source["name"];
  std::replace_if(
      row.name.begin(), row.name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  row.model = source["model"];
  row.model_type = models.at(row.model).at("type");
  row.config = models.at(row.model).at("config");
  if (source.contains("model_overrides")) row.config.update(source["model_overrides"]);
  row.replicate = source.value("replicate", row.replicate);
  row.fsdp = source.value("fsdp", row.fsdp);
  row.tp = source.value("tp", row.tp);
  row.sequence_parallel = source.value("sequence_parallel", row.sequence_parallel);
  row.loss_parallel = source.value("loss_parallel", row.loss_parallel);
  row.accumulation = source.value("accumulation", row.accumulation);
  row.steps = source.value("steps", row.steps);
  row.dtype = source.value("dtype", row.dtype);
  row.labels = source.value("labels", row.labels);
  row.reshard_after_forward = source.value("reshard_after_forward", row.reshard_after_forward);
  row.prefetch = source.value("prefetch", row.prefetch);
  return row;
}

}  // namespace

std::vector<Row> load_rows() {
  const std::filesystem::path folder = COMPOSITION_FOLDER;
  const nlohmann::json models = to_json(YAML::LoadFile(folder / "models.yaml"));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "rows")) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Row> rows;
  for (const auto& file : files)
    for (const nlohmann::json& source : to_json(YAML::LoadFile(file)))
      for (const nlohmann::json& one : expand(source)) rows.push_back(to_row(one, models));
  return rows;
}

}  // namespace hyper_parallel::composition
