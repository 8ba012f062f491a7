// SPDX-License-Identifier: Apache-2.0
// What one rank contributes to one collective, in the form that every backend works on: lists of contiguous blocks.
//
//   op               in                        out                     (N = ranks, T = tensors, N by default in group order)
//   all_reduce       -                         T
//   all_gather       T                         T * N: block t * N + r comes from rank r
//   reduce_scatter   T * N: t * N + r to r     T
//   all_to_all       N: block r goes to r      N: block r comes from r
//   broadcast        -                         1
//   reduce           -                         1
//   gather           1                         N on root, else none
//   scatter          N on root, else none      1
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>

#include "hyper_parallel/collectives/detail/combine.h"
#include "hyper_parallel/collectives/process_group.h"
#include "hyper_parallel/collectives/progress_note.h"

namespace hyper_parallel::detail {

enum class Op : uint8_t {
  kNone,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kRecv
};
const char* name_of(Op op);
std::string name_of_dtype(at::ScalarType dtype);  // "f32"
// What a rank posted last: "reduce_scatter #117 at step 12, layers.3", or "nothing".
std::string describe_last(Op op, uint64_t sequence, const ProgressNote& note);

struct Block {
  char* data;
  int64_t numel;
};

struct Call {
  Op op = Op::kNone;
  ReduceOp reduce = ReduceOp::kSum;
  int root = -1;  // or the peer of send and recv
  at::ScalarType dtype = at::kFloat;
  bool same_shape = false;  // tensors[0] must have one shape on every rank
  c10::SmallVector<Block, 8> in, out;
  c10::SmallVector<at::Tensor, 4> tensors;                           // keeps every block's memory; [0] is the one that messages show
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 1> copy_back;  // (target, contiguous stand-in): copied when complete

  void clear();
  void add_input(const at::Tensor& tensor, int num_blocks);
  void add_output(const at::Tensor& tensor, int num_blocks);
  void finish();  // copies back and lets go of the tensors
  int64_t element_bytes() const { return int64_t(c10::elementSize(dtype)); }
  bool reduces() const { return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce; }
  std::string describe() const;  // "f32 [4096]"
};

// What moves for tensor `tensor` of a call of `num_ranks` ranks: the block that a rank gives to `to`, and the one that it takes from
// `from`.
const Block& input_block(const Call& call, int num_ranks, int tensor, int to);
const Block& output_block(const Call& call, int num_ranks, int tensor, int from);

// The kernel of a call that reduces. CollectiveError for dtypes without one (complex, quantized) and for averages of integers.
CombineKernel kernel_of(at::ScalarType dtype, ReduceOp op);
// Checks before a call is posted, where the caller can still be told what is wrong.
void check_tensor(const at::Tensor& tensor, Op op, const char* role);

}  // namespace hyper_parallel::detail
