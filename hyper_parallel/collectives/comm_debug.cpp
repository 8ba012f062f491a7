// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/comm_debug.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cctype>
#include <iomanip>
#include <iterator>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/string.h"
#include "hyper_parallel/collectives/detail/backend.h"

namespace hyper_parallel {
namespace {

using detail::Op;

int64_t numel_of(const c10::SmallVector<detail::Block, 8>& blocks) {
  int64_t numel = 0;
  for (const detail::Block& block : blocks) numel += block.numel;
  return numel;
}

int64_t numel_to_others(const detail::Call& call, const Backend& backend) {
  const int64_t n = backend.size(), tensors = int64_t(call.in.size()) / n;
  int64_t numel = numel_of(call.in);
  for (int64_t tensor = 0; tensor < tensors; ++tensor) numel -= call.in[size_t(tensor * n + backend.rank())].numel;
  return numel;
}

int64_t bytes_sent(const detail::Call& call, const Backend& backend) {
  const int64_t n = backend.size(), bytes = call.element_bytes();
  const bool is_root = backend.rank() == call.root;
  switch (call.op) {
    case Op::kAllReduce:
      return 2 * numel_of(call.out) * bytes * (n - 1) / n;
    case Op::kAllGather:
      return numel_of(call.in) * bytes * (n - 1);
    case Op::kReduceScatter:
    case Op::kAllToAll:
      return numel_to_others(call, backend) * bytes;
    case Op::kBroadcast:
      return is_root ? numel_of(call.out) * bytes * (n - 1) : 0;
    case Op::kReduce:
      return is_root ? 0 : numel_of(call.out) * bytes;
    case Op::kGather:
      return is_root ? 0 : numel_of(call.in) * bytes;
    case Op::kScatter:
      return is_root ? numel_to_others(call, backend) * bytes : 0;
    case Op::kSend:
      return numel_of(call.in) * bytes;
    default:
      return 0;
  }
}

std::string format_bytes(int64_t bytes) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = double(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  std::ostringstream out;
  out << std::fixed << std::setprecision(unit == 0 ? 0 : 1) << value << ' ' << units[unit];
  return out.str();
}

struct Total {
  int64_t count = 0, bytes = 0;
  void add(const CommRecord& record) { count += record.count, bytes += record.bytes; }
  std::string to_string() const { return bytes == 0 ? str(count) : str(count, ", ", format_bytes(bytes)); }
};

// layers.2 before layers.10.
bool place_before(const CommRecord& a, const CommRecord& b) {
  const auto is_number = [](const std::string& text) { return !text.empty() && std::all_of(text.begin(), text.end(), ::isdigit); };
  const std::vector<std::string> left = split(a.place, '.'), right = split(b.place, '.');
  return std::lexicographical_compare(left.begin(), left.end(), right.begin(), right.end(), [&](const auto& x, const auto& y) {
    return is_number(x) && is_number(y) && x.size() != y.size() ? x.size() < y.size() : x < y;
  });
}

std::string line_of(const CommRecord& record) {
  std::string line = str(record.count, " x ", record.collective, " over ", record.group, " (", record.num_ranks, " ranks)");
  if (record.bytes > 0) line += ", " + format_bytes(record.bytes);
  if (!record.op.empty()) line += ", for " + record.op;
  return record.backward ? line + ", in backward" : line;
}

bool is_within(const std::string& place, const std::string& outer) {
  return outer.empty() || place == outer || place.starts_with(outer + ".");
}

// The records [begin, end) all lie within `outer`, sorted by place.
using Records = std::vector<CommRecord>;
void append_tree(const Records& records, size_t begin, size_t end, const std::string& outer, int depth, std::string& text) {
  const std::string indent(size_t(2 * depth), ' ');
  for (; begin < end && records[begin].place == outer; ++begin) text += indent + line_of(records[begin]) + "\n";
  const size_t skip = outer.empty() ? 0 : outer.size() + 1;
  while (begin < end) {
    const std::string name = records[begin].place.substr(skip, records[begin].place.find('.', skip) - skip);
    const std::string place = outer.empty() ? name : outer + "." + name;
    Total total;
    size_t last = begin;
    for (; last < end && is_within(records[last].place, place); ++last) total.add(records[last]);
    text += str(indent, name, ": ", total.to_string(), "\n");
    append_tree(records, begin, last, place, depth + 1, text);
    begin = last;
  }
}

}  // namespace

CommDebugMode::CommDebugMode() : outer_(active_comm_debug_mode) { active_comm_debug_mode = this; }
CommDebugMode::~CommDebugMode() { active_comm_debug_mode = outer_; }

void CommDebugMode::record(const Backend& backend, const detail::Call& call) {
  const std::string op = collective_cause != nullptr ? *collective_cause : "";
  const std::string place = progress_note.place != nullptr ? *progress_note.place : "";
  const bool backward = torch::autograd::get_current_graph_task_id() >= 0;
  for (CommDebugMode* mode = active_comm_debug_mode; mode != nullptr; mode = mode->outer_) {
    const auto [found, fresh] = mode->indices_.try_emplace({place, backward, &backend, op, int(call.op)}, mode->records_.size());
    if (fresh) mode->records_.push_back({detail::name_of(call.op), backend.name(), backend.size(), op, place, backward});
    CommRecord& record = mode->records_[found->second];
    ++record.count;
    record.bytes += bytes_sent(call, backend);
  }
}

int64_t CommDebugMode::count() const {
  Total total;
  for (const CommRecord& record : records_) total.add(record);
  return total.count;
}

int64_t CommDebugMode::bytes() const {
  Total total;
  for (const CommRecord& record : records_) total.add(record);
  return total.bytes;
}

int64_t CommDebugMode::count(const std::string& collective) const {
  std::vector<std::string> known;
  for (int op = int(Op::kAllReduce); op <= int(Op::kRecv); ++op) known.emplace_back(detail::name_of(Op(op)));
  if (std::find(known.begin(), known.end(), collective) == known.end())
    throw CollectiveError(str("CommDebugMode: no collective is named \"", collective, "\" (allowed: ", join(known, ", "), ")"));
  Total total;
  for (const CommRecord& record : records_)
    if (record.collective == collective) total.add(record);
  return total.count;
}

std::vector<CommRecord> CommDebugMode::records() const {
  std::vector<CommRecord> sorted = records_;
  std::stable_sort(sorted.begin(), sorted.end(), place_before);
  return sorted;
}

std::string CommDebugMode::to_string() const {
  const Records sorted = records();
  std::string text = str(count(), count() == 1 ? " collective, " : " collectives, ", format_bytes(bytes()), " sent\n");
  append_tree(sorted, 0, sorted.size(), "", 1, text);
  return text;
}

}  // namespace hyper_parallel
