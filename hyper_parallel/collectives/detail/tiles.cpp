// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/tiles.h"

#include <unistd.h>

#include <algorithm>

#include "hyper_parallel/base/string.h"

namespace hyper_parallel::detail {
namespace {

constexpr int64_t kSmallBytes = int64_t(16) << 10;  // up to this the last to arrive does everything
constexpr int64_t kMinTileBytes = int64_t(8) << 10, kMaxTileBytes = int64_t(64) << 10;
constexpr int64_t kStepBytes = 256;  // one iteration of the kernels

int64_t stream_bytes() {  // half of the last cache: what is larger leaves it anyway
  static const int64_t bytes = [] {
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return cache > 0 ? std::max<int64_t>(cache / 2, int64_t(4) << 20) : int64_t(16) << 20;
  }();
  return bytes;
}

}  // namespace

std::string first_mismatch(std::span<const Call* const> calls, std::span<const int> ranks, bool compare_shapes) {
  const Call& first = *calls[0];
  for (int r = 1; r < int(calls.size()); ++r) {
    const Call& call = *calls[r];
    const auto differs = [&](const char* what, const auto& mine, const auto& other) {
      return str(what, " differs: rank ", ranks[0], " has ", mine, ", rank ", ranks[r], " has ", other);
    };
    if (call.op != first.op)
      return str("operation differs: rank ", ranks[0], " does ", name_of(first.op), " ", first.describe(), ", rank ", ranks[r], " does ",
                 name_of(call.op), " ", call.describe());
    if (call.dtype != first.dtype) return differs("dtype", name_of_dtype(first.dtype), name_of_dtype(call.dtype));
    if (call.reduce != first.reduce)
      return differs("reduction", std::string(hyper_parallel::name_of(first.reduce)), std::string(hyper_parallel::name_of(call.reduce)));
    if (call.root != first.root) return differs("root", first.root, call.root);
    const bool rooted = call.op == Op::kGather || call.op == Op::kScatter;
    if (!rooted && (call.in.size() != first.in.size() || call.out.size() != first.out.size())) {
      return differs("number of tensors", first.tensors.size(), call.tensors.size());
    }
    const bool shapes_known = !first.tensors.empty() && !call.tensors.empty();
    if (compare_shapes && shapes_known && first.same_shape && call.tensors[0].sizes() != first.tensors[0].sizes()) {
      return differs("shape", bracketed(first.tensors[0].sizes()), bracketed(call.tensors[0].sizes()));
    }
  }
  return "";
}

namespace {

template <class Body>
void for_ranks(int rank, int num_ranks, Body&& body) {
  if (rank >= 0) return body(rank);
  for (int r = 0; r < num_ranks; ++r) body(r);
}

}  // namespace

std::string TileList::add(std::span<const Call* const> calls, std::span<const int> ranks, int tensor, int from, int to) {
  const int n = int(calls.size());
  int64_t count = -1;
  int of = -1;
  std::string error;
  const auto check = [&](int rank, const Block& block) {
    if (count < 0) count = block.numel, of = rank;
    if (block.numel != count && error.empty()) {
      error = str("size differs: rank ", ranks[of], " has ", count, " elements (", calls[of]->describe(), "), rank ", ranks[rank], " has ",
                  block.numel, " (", calls[rank]->describe(), ")");
    }
  };
  for_ranks(from, n, [&](int r) { check(r, input_block(*calls[r], n, tensor, to)); });
  for_ranks(to, n, [&](int r) { check(r, output_block(*calls[r], n, tensor, from)); });
  if (error.empty() && count > 0) {
    pieces_.push_back({total_, count, tensor, from, to});
    total_ += count;
  }
  return error;
}

std::string TileList::plan(std::span<const Call* const> calls, std::span<const int> ranks) {
  const Call& call = *calls[0];
  const int n = int(calls.size());
  pieces_.clear();
  total_ = 0;
  std::string error;
  const auto piece = [&](int tensor, int from, int to) {
    if (error.empty()) error = add(calls, ranks, tensor, from, to);
  };
  switch (call.op) {
    case Op::kAllReduce:
      for (int t = 0; t < int(call.out.size()); ++t) piece(t, -1, -1);
      break;
    case Op::kAllGather:
      for (int t = 0; t < int(call.in.size()); ++t)
        for (int r = 0; r < n; ++r) piece(t, r, -1);
      break;
    case Op::kReduceScatter:
      for (int t = 0; t < int(call.out.size()); ++t)
        for (int r = 0; r < n; ++r) piece(t, -1, r);
      break;
    case Op::kAllToAll:
      for (int to = 0; to < n; ++to)
        for (int from = 0; from < n; ++from) piece(0, from, to);
      break;
    case Op::kBroadcast:
      piece(0, call.root, -1);
      break;
    case Op::kReduce:
      piece(0, -1, call.root);
      break;
    case Op::kGather:
      for (int from = 0; from < n; ++from) piece(0, from, call.root);
      break;
    case Op::kScatter:
      for (int to = 0; to < n; ++to) piece(0, call.root, to);
      break;
    default:
      break;
  }
  if (!error.empty()) return error;

  element_bytes_ = call.element_bytes();
  kernel_ = call.reduces() ? kernel_of(call.dtype, call.reduce) : nullptr;
  divisor_ = call.reduces() && call.reduce == ReduceOp::kAvg ? n : 1;
  const bool in_place = call.op == Op::kAllReduce || call.op == Op::kReduce;
  const bool fans_out = call.op == Op::kAllGather || call.op == Op::kBroadcast, fans_in = call.reduces();
  const int64_t total_bytes = total_ * element_bytes_;
  nontemporal_ = !in_place && total_bytes * ((fans_in ? n : 1) + (fans_out ? n : 1)) > stream_bytes();
  small_ = total_bytes <= kSmallBytes;
  const int64_t tile_bytes = std::clamp(total_bytes / (4 * n), kMinTileBytes, kMaxTileBytes) / kStepBytes * kStepBytes;
  tile_ = std::max<int64_t>(tile_bytes / element_bytes_, 1);
  num_tiles_ = (total_ + tile_ - 1) / tile_;
  next_.store(0, std::memory_order_relaxed);
  num_done_.store(0, std::memory_order_relaxed);
  return "";
}

bool TileList::run_one(std::span<const Call* const> calls, bool& finished) {
  const int64_t tile = next_.fetch_add(1, std::memory_order_relaxed);
  if (tile >= num_tiles_) return false;
  run_range(calls, tile * tile_, std::min(total_, (tile + 1) * tile_));
  finished = num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_tiles_;
  return true;
}

void TileList::run_range(std::span<const Call* const> calls, int64_t begin, int64_t end) {
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), begin, [](int64_t at, const Piece& p) { return at < p.begin; });
  if (piece == pieces_.begin()) return;
  for (--piece; piece != pieces_.end() && piece->begin < end; ++piece) {
    run_piece(calls, *piece, std::max(begin, piece->begin) - piece->begin, std::min(end, piece->begin + piece->count) - piece->begin);
  }
}

void TileList::run_piece(std::span<const Call* const> calls, const Piece& piece, int64_t begin, int64_t end) const {
  const int n = int(calls.size());
  const int64_t offset = begin * element_bytes_;
  c10::SmallVector<const void*, 16> inputs;
  c10::SmallVector<void*, 16> outputs;
  for_ranks(piece.from, n, [&](int r) { inputs.push_back(input_block(*calls[r], n, piece.tensor, piece.to).data + offset); });
  for_ranks(piece.to, n, [&](int r) {
    void* to = output_block(*calls[r], n, piece.tensor, piece.from).data + offset;
    if (kernel_ != nullptr || to != inputs[0]) outputs.push_back(to);
  });
  const int64_t scale = kernel_ != nullptr ? 1 : element_bytes_;
  const CombineTask task{inputs.data(),         int(inputs.size()), outputs.data(), int(outputs.size()),
                         (end - begin) * scale, divisor_,           nontemporal_};
  kernel_ != nullptr ? kernel_(task) : copy_bytes(task);
}

}  // namespace hyper_parallel::detail
