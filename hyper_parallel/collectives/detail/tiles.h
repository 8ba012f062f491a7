// SPDX-License-Identifier: Apache-2.0
// The work of one collective as a list of pieces ("these inputs, combined, are these outputs"), cut into tiles that any thread can take.
//
//   TileList tiles;
//   std::string mismatch = tiles.plan(calls, ranks);  // by the last rank to arrive; "" if all ranks agree
//   while (tiles.run_one(calls)) {}                // by every rank that waits; the last tile done says finished
#pragma once
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/detail/call.h"

namespace hyper_parallel::detail {

// "" or what differs between calls: operation, dtype, root, number of blocks, shapes if asked for. ranks[i], which messages show, made
// calls[i].
std::string first_mismatch(std::span<const Call* const> calls, std::span<const int> ranks, bool compare_shapes);

class TileList {
 public:
  // Cuts the work of `calls` (by rank, whose world ranks are `ranks`). Returns "" or the sizes that don't agree.
  std::string plan(std::span<const Call* const> calls, std::span<const int> ranks);
  bool small() const { return small_; }  // not worth waking anybody: run_all by one thread
  void run_all(std::span<const Call* const> calls) { run_range(calls, 0, total_); }
  // Takes the next tile and runs it. True in `finished` if it was the last of all to be done.
  bool run_one(std::span<const Call* const> calls, bool& finished);

 private:
  struct Piece {
    int64_t begin, count;  // elements in the concatenation of all pieces
    int tensor, from, to;  // ranks, -1: all
  };
  std::string add(std::span<const Call* const> calls, std::span<const int> ranks, int tensor, int from, int to);
  void run_range(std::span<const Call* const> calls, int64_t begin, int64_t end);
  void run_piece(std::span<const Call* const> calls, const Piece& piece, int64_t begin, int64_t end) const;

  std::vector<Piece> pieces_;
  CombineKernel kernel_ = nullptr;
  int64_t total_ = 0, tile_ = 1, num_tiles_ = 0, element_bytes_ = 1;
  int divisor_ = 1;
  bool small_ = true, nontemporal_ = false;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> num_done_{0};
};

}  // namespace hyper_parallel::detail
