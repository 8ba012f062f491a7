// SPDX-License-Identifier: Apache-2.0
// Global tensors, and the ways in which ranks may hold them. Written with plain slicing, apart from the library's own layouts.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "hyper_parallel/dtensor/state_dict.h"

namespace hyper_parallel::testing_support {

using GlobalTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Sizes that divide nothing, a scalar, an empty tensor, several dtypes.
inline GlobalTensors sample_state() {
  return {{"model.embed.weight", at::randn({7, 5})},
          {"model.norm.weight", at::randn({3, 1, 4}).to(at::kBFloat16)},
          {"optimizer.step", at::arange(41, 42, at::kDouble).squeeze()},
          {"model.empty", at::zeros({0, 3})},
          {"counter", at::randint(1000, {1}, at::kLong)},
          {"model.up.weight", at::randn({100, 33})},
          {"mask", at::randint(2, {13}).to(at::kBool)}};
}

enum class Holding { kReplicated, kRows, kColumns, kFlat, kBlocks, kFirstRank, kLastRank, kMixed };
inline constexpr Holding kAllHoldings[] = {Holding::kReplicated, Holding::kRows,      Holding::kColumns,  Holding::kFlat,
                                           Holding::kBlocks,     Holding::kFirstRank, Holding::kLastRank, Holding::kMixed};

// Even split with the larger parts first, as ceil-sized chunks: later ranks may hold less or nothing.
inline std::pair<int64_t, int64_t> chunk(int64_t size, int64_t index, int64_t count) {
  const int64_t step = (size + count - 1) / count;
  const int64_t begin = std::min(size, index * step);
  return {begin, std::min(size, begin + step) - begin};
}

inline StateEntry box_entry(const std::string& name, const at::Tensor& tensor, const Box& box) {
  at::Tensor part = tensor;
  for (size_t dim = 0; dim < box.sizes.size(); ++dim) part = part.narrow(static_cast<int64_t>(dim), box.offsets[dim], box.sizes[dim]);
  StateEntry entry{name, tensor.sizes().vec(), part.clone().contiguous(), {}};
  if (part.numel() > 0) entry.boxes.push_back(box);
  return entry;
}

inline StateEntry nothing(const std::string& name, const at::Tensor& tensor) {
  return {name, tensor.sizes().vec(), at::empty({0}, tensor.options()), {}};
}

inline StateEntry entry_of(const std::string& name, const at::Tensor& tensor, Holding holding, int rank, int size) {
  Box box{std::vector<int64_t>(tensor.dim(), 0), tensor.sizes().vec()};
  const auto split = [&](int64_t dim, int64_t index, int64_t count) {
    std::tie(box.offsets[dim], box.sizes[dim]) = chunk(tensor.size(dim), index, count);
  };
  switch (holding) {
    case Holding::kReplicated:
      break;
    case Holding::kRows:
      if (tensor.dim() > 0) split(0, rank, size);
      break;
    case Holding::kColumns:
      if (tensor.dim() > 1) split(1, rank, size);
      break;
    case Holding::kFlat: {
      const auto [begin, count] = chunk(tensor.numel(), rank, size);
      return range_entry(name, tensor.sizes().vec(), tensor.flatten().narrow(0, begin, count).clone(), begin);
    }
    case Holding::kBlocks:  // rows over pairs of ranks, columns within a pair; whole columns where the ranks are odd
      if (tensor.dim() > 1 && size % 2 == 0) {
        split(0, rank / 2, size / 2);
        split(1, rank % 2, 2);
      } else if (tensor.dim() > 0) {
        split(0, size - 1 - rank, size);
      }
      break;
    case Holding::kFirstRank:
      if (rank != 0) return nothing(name, tensor);
      break;
    case Holding::kLastRank:
      if (rank != size - 1) return nothing(name, tensor);
      break;
    case Holding::kMixed:  // another one for each tensor
      return entry_of(name, tensor, kAllHoldings[name.size() % 7], rank, size);
  }
  return box_entry(name, tensor, box);
}

inline StateDict state_of(const GlobalTensors& tensors, Holding holding, int rank, int size) {
  StateDict state;
  for (const auto& [name, tensor] : tensors) state.push_back(entry_of(name, tensor, holding, rank, size));
  return state;
}

// The same entries over memory full of 0xA5.
inline StateDict blank_like(const StateDict& state) {
  StateDict blank = state;
  for (StateEntry& entry : blank) {
    entry.local = at::empty(entry.local.sizes(), entry.local.options());
    if (entry.local.numel() > 0) std::memset(entry.local.mutable_data_ptr(), 0xA5, entry.local.nbytes());
  }
  return blank;
}

inline bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

}  // namespace hyper_parallel::testing_support
