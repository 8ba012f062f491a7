// SPDX-License-Identifier: Apache-2.0
// Composition rows: which mix of model, mesh and options must equal the one-rank run. Read from tests/composition/rows/*.yaml; a list
// stands for one row per item, so `{ fsdp: [1, 2], accumulation: [1, 3] }` is four rows.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hyper_parallel::composition {

struct Row {
  std::string name;   // with the values of its lists
  std::string model;  // a key of models.yaml: {type, config}
  std::string model_type;
  nlohmann::json config;  // models.yaml's, with model_overrides
  int64_t replicate = 1, fsdp = 1, tp = 1;
  bool sequence_parallel = false, loss_parallel = true;
  int64_t accumulation = 1;  // microbatches a step
  int64_t steps = 3;
  std::string dtype = "f64";
  std::string labels = "all";  // all | seven_one | last_rank_none | none
  bool reshard_after_forward = true;
  int64_t prefetch = 1;
};

std::vector<Row> load_rows();

}  // namespace hyper_parallel::composition
