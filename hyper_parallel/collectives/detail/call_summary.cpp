// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/call_summary.h"

#include <ATen/ops/empty.h>

#include <sstream>

#include "hyper_parallel/base/string.h"
#include "hyper_parallel/collectives/detail/tiles.h"

namespace hyper_parallel::detail {
namespace {

template <class Range, class Value>
void write_list(std::ostringstream& out, const Range& range, Value&& value) {
  out << ' ' << range.size();
  for (const auto& item : range) out << ' ' << value(item);
}

std::vector<int64_t> read_list(std::istream& in) {
  size_t count = 0;
  in >> count;
  std::vector<int64_t> values;
  for (int64_t value; values.size() < count && in >> value;) values.push_back(value);
  return values;
}

CallSummary read_summary(const std::string& line) {
  std::istringstream in(line);
  CallSummary summary;
  Call& call = summary.call;
  int op = 0, reduce = 0, dtype = 0, num_tensors = 0;
  in >> summary.sequence >> op >> reduce >> call.root >> dtype >> call.same_shape >> num_tensors;
  call.op = Op(op), call.reduce = ReduceOp(reduce), call.dtype = at::ScalarType(dtype);
  const std::vector<int64_t> shape = read_list(in);
  if (num_tensors > 0) call.tensors.assign(num_tensors, at::empty(shape, at::TensorOptions(at::kMeta).dtype(call.dtype)));
  for (const int64_t numel : read_list(in)) call.in.push_back({nullptr, numel});
  for (const int64_t numel : read_list(in)) call.out.push_back({nullptr, numel});
  return summary;
}

bool moves_between(const Call& call, int from, int to) {
  switch (call.op) {
    case Op::kBroadcast:
    case Op::kScatter:
      return from == call.root;
    case Op::kReduce:
    case Op::kGather:
      return to == call.root;
    default:
      return call.op != Op::kBarrier;
  }
}

// What the rank behind calls[0] gives and the other one takes.
std::string size_difference(const std::array<const Call*, 2>& calls, const std::array<int, 2>& members, std::span<const int> ranks) {
  const auto& [giver, taker] = calls;
  const auto& [from, to] = members;
  if (!moves_between(*giver, from, to)) return "";
  const int n = int(ranks.size());
  const bool one = giver->op == Op::kAllToAll || giver->op == Op::kGather;
  const size_t num_tensors = one ? 1 : giver->op == Op::kAllGather ? giver->in.size() : taker->out.size();
  for (int t = 0; t < int(num_tensors); ++t) {
    const int64_t gives = input_block(*giver, n, t, to).numel, takes = output_block(*taker, n, t, from).numel;
    if (gives == takes) continue;
    if (giver->same_shape)
      return str("size differs: rank ", ranks[from], " has ", gives, " elements (", giver->describe(), "), rank ", ranks[to], " has ",
                 takes, " (", taker->describe(), ")");
    return str("size differs: rank ", ranks[from], " gives rank ", ranks[to], " ", gives, " elements (", giver->describe(), "), rank ",
               ranks[to], " expects ", takes, " (", taker->describe(), ")");
  }
  return "";
}

}  // namespace

std::string write_summary(const Call& call, uint64_t sequence, bool with_shapes) {
  std::ostringstream out;
  const auto numel_of = [](const Block& block) { return block.numel; };
  out << '\n'
      << sequence << ' ' << int(call.op) << ' ' << int(call.reduce) << ' ' << call.root << ' ' << int(call.dtype) << ' ' << call.same_shape
      << ' ' << (with_shapes ? call.tensors.size() : 0);
  write_list(out, !with_shapes || call.tensors.empty() ? at::IntArrayRef() : call.tensors[0].sizes(), [](int64_t size) { return size; });
  write_list(out, call.in, numel_of);
  write_list(out, call.out, numel_of);
  return out.str();
}

std::vector<CallSummary> read_summaries(const std::string& text) {
  std::vector<CallSummary> summaries;
  for (const std::string& line : hyper_parallel::split(text, '\n'))
    if (!line.empty()) summaries.push_back(read_summary(line));
  return summaries;
}

std::string first_difference(const std::array<const Call*, 2>& calls, const std::array<int, 2>& members, std::span<const int> ranks,
                             bool compare_shapes) {
  const int world_ranks[] = {ranks[members[0]], ranks[members[1]]};
  std::string difference = first_mismatch(calls, world_ranks, false);
  if (difference.empty()) difference = size_difference(calls, members, ranks);
  if (difference.empty()) difference = size_difference({calls[1], calls[0]}, {members[1], members[0]}, ranks);
  return difference.empty() ? first_mismatch(calls, world_ranks, compare_shapes) : difference;
}

}  // namespace hyper_parallel::detail
