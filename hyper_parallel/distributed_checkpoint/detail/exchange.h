// SPDX-License-Identifier: Apache-2.0
// Small objects between ranks, and agreement on success: a step that fails on one rank fails on all with the same error.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/process_group.h"

namespace hyper_parallel::detail {

// Runs `step` on this rank and returns all ranks' results in rank order. Collective, also where a step throws: then every rank throws the
// first failing rank's error, of the same type: "<action> failed on rank 2: <message>". CollectiveErrors pass through as they are.
std::vector<nlohmann::json> run_on_all(const ProcessGroup& group, const std::string& action, const std::function<nlohmann::json()>& step);

}  // namespace hyper_parallel::detail
