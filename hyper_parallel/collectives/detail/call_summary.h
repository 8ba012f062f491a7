// SPDX-License-Identifier: Apache-2.0
// What a rank does in one collective, as text that travels to other ranks: they compare it with their own call when both wait, or before
// each collective in debug mode.
//
//   store.set("call/0", write_summary(call, 5, true));
//   const std::vector<CallSummary> theirs = read_summaries(store.get("call/1"));
//   std::string text = first_difference({&mine, &theirs[0].call}, {0, 1}, ranks, false);  // "" or what contradicts
#pragma once
#include <array>
#include <span>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/detail/call.h"

namespace hyper_parallel::detail {

struct CallSummary {
  uint64_t sequence = 0;
  Call call;  // its blocks have sizes but no data, its tensors shapes but no storage
};

// One line. A call that has finished lets go of its tensors: without shapes they are not touched.
std::string write_summary(const Call& call, uint64_t sequence, bool with_shapes);
std::vector<CallSummary> read_summaries(const std::string& text);

// "", or the first thing in which the calls of two ranks of a group contradict each other: operation, dtype, root, what one gives and the
// other takes, shapes if asked for. `members`: their ranks in the group, whose world ranks are `ranks`.
std::string first_difference(const std::array<const Call*, 2>& calls, const std::array<int, 2>& members, std::span<const int> ranks,
                             bool compare_shapes);

}  // namespace hyper_parallel::detail
