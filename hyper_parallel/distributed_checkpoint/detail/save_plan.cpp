// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/detail/save_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/distributed_checkpoint/detail/coverage.h"
#include "hyper_parallel/distributed_checkpoint/safetensors.h"

namespace hyper_parallel::detail {
namespace {

using nlohmann::json;
using BoxKey = std::pair<std::vector<int64_t>, std::vector<int64_t>>;

struct Holding {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  int first_rank;
  std::map<BoxKey, std::vector<int>> holders;
};

void check_entry(const StateEntry& entry) {
  int64_t num_elements = 0;
  for (const Box& box : entry.boxes) {
    if (!inside(box, entry.sizes)) {
      throw CheckpointError(
          str("state entry \"", entry.name, "\": box at ", box.offsets, " of ", box.sizes, " is not inside shape ", entry.sizes));
    }
    num_elements += box.numel();
  }
  HYPER_PARALLEL_CHECK(entry.local.defined() && entry.local.is_contiguous() && entry.local.numel() == num_elements, "state entry ",
                       entry.name, ": ", num_elements, " elements in its boxes");
}

void add_entry(std::map<std::string, Holding>& holdings, int rank, const json& entry) {
  const auto name = entry.at(0).get<std::string>();
  const auto dtype = static_cast<at::ScalarType>(entry.at(1).get<int>());
  const auto sizes = entry.at(2).get<std::vector<int64_t>>();
  const auto [found, is_new] = holdings.try_emplace(name, Holding{dtype, sizes, rank, {}});
  Holding& holding = found->second;
  if (holding.dtype != dtype || holding.sizes != sizes) {
    throw CheckpointError(str("tensor \"", name, "\" is ", safetensors_name(holding.dtype), " ", holding.sizes, " on rank ",
                              holding.first_rank, " and ", safetensors_name(dtype), " ", sizes, " on rank ", rank));
  }
  for (const json& box : entry.at(3)) holding.holders[box.get<BoxKey>()].push_back(rank);
}

void check_covered(const std::string& name, const Holding& holding) {
  std::vector<Box> boxes;
  for (const auto& [key, ranks] : holding.holders) boxes.push_back({key.first, key.second});
  if (const auto gap = uncovered_part(holding.sizes, boxes)) {
    throw CheckpointError(
        str("tensor \"", name, "\" of shape ", holding.sizes, ": no rank holds the box at ", gap->offsets, " of ", gap->sizes));
  }
}

// Boxes with one holder are settled; the others go, largest first, to the holder with the least to write so far.
void choose_writers(SavePlan& plan, const std::vector<const std::vector<int>*>& holders, int num_ranks) {
  std::vector<int64_t> load(num_ranks, 0), num_bytes(plan.pieces.size());
  std::vector<size_t> open;
  for (size_t piece = 0; piece < plan.pieces.size(); ++piece) {
    num_bytes[piece] =
        plan.pieces[piece].box.numel() * static_cast<int64_t>(c10::elementSize(plan.tensors[plan.pieces[piece].tensor].dtype));
    if (holders[piece]->size() == 1)
      load[plan.pieces[piece].writer = holders[piece]->front()] += num_bytes[piece];
    else
      open.push_back(piece);
  }
  std::stable_sort(open.begin(), open.end(), [&](size_t a, size_t b) { return num_bytes[a] > num_bytes[b]; });
  for (const size_t piece : open) {
    const int writer = *std::min_element(holders[piece]->begin(), holders[piece]->end(), [&](int a, int b) { return load[a] < load[b]; });
    load[plan.pieces[piece].writer = writer] += num_bytes[piece];
  }
}

}  // namespace

json describe_state(const StateDict& state) {
  json description = json::array();
  std::set<std::string> names;
  for (const StateEntry& entry : state) {
    if (!names.insert(entry.name).second) throw CheckpointError(str("state entry \"", entry.name, "\" is given twice"));
    check_entry(entry);
    safetensors_name(entry.local.scalar_type());
    json boxes = json::array();
    for (const Box& box : entry.boxes) {
      if (box.numel() > 0) boxes.push_back({box.offsets, box.sizes});
    }
    description.push_back({entry.name, static_cast<int>(entry.local.scalar_type()), entry.sizes, std::move(boxes)});
  }
  return description;
}

SavePlan make_save_plan(const std::vector<json>& descriptions) {
  std::map<std::string, Holding> holdings;
  for (size_t rank = 0; rank < descriptions.size(); ++rank) {
    for (const json& entry : descriptions[rank]) add_entry(holdings, static_cast<int>(rank), entry);
  }
  SavePlan plan;
  std::vector<const std::vector<int>*> holders;
  for (const auto& [name, holding] : holdings) {
    check_covered(name, holding);
    plan.tensors.push_back({name, holding.dtype, holding.sizes});
    for (const auto& [key, ranks] : holding.holders) {
      plan.pieces.push_back({plan.tensors.size() - 1, {key.first, key.second}, 0});
      holders.push_back(&ranks);
    }
  }
  choose_writers(plan, holders, static_cast<int>(descriptions.size()));
  return plan;
}

}  // namespace hyper_parallel::detail
