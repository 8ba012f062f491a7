// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/call.h"

#include <c10/core/GradMode.h>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProd:
      return "prod";
  }
  return "?";
}

namespace detail {
namespace {

struct DtypeRow {
  at::ScalarType dtype;
  const char* name;
  int element_type;  // ElementType, -1: no reductions
};
constexpr DtypeRow kDtypes[] = {
    {at::kDouble, "f64", int(ElementType::kF64)},     {at::kFloat, "f32", int(ElementType::kF32)},
    {at::kBFloat16, "bf16", int(ElementType::kBF16)}, {at::kHalf, "f16", int(ElementType::kF16)},
    {at::kChar, "i8", int(ElementType::kI8)},         {at::kByte, "u8", int(ElementType::kU8)},
    {at::kShort, "i16", int(ElementType::kI16)},      {at::kUInt16, "u16", int(ElementType::kU16)},
    {at::kInt, "i32", int(ElementType::kI32)},        {at::kUInt32, "u32", int(ElementType::kU32)},
    {at::kLong, "i64", int(ElementType::kI64)},       {at::kUInt64, "u64", int(ElementType::kU64)},
    {at::kBool, "bool", int(ElementType::kBool)},
};

const DtypeRow* find_dtype(at::ScalarType dtype) {
  for (const DtypeRow& row : kDtypes)
    if (row.dtype == dtype) return &row;
  return nullptr;
}

}  // namespace

const char* name_of(Op op) {
  static constexpr const char* kNames[] = {"nothing", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                                           "reduce",  "gather",     "scatter",    "barrier",        "send",       "recv"};
  return kNames[int(op)];
}

std::string name_of_dtype(at::ScalarType dtype) {
  const DtypeRow* row = find_dtype(dtype);
  return row != nullptr ? row->name : c10::toString(dtype);
}

std::string describe_last(Op op, uint64_t sequence, const ProgressNote& note) {
  if (sequence == 0) return name_of(Op::kNone);
  std::string text = str(name_of(op), " #", sequence);
  if (note.step >= 0) text += str(" at step ", note.step);
  if (note.place != nullptr) text += str(note.step >= 0 ? ", " : " at ", *note.place);
  return text;
}

void Call::clear() {
  op = Op::kNone;
  reduce = ReduceOp::kSum;
  root = -1;
  same_shape = false;
  in.clear();
  out.clear();
  tensors.clear();
  copy_back.clear();
}

namespace {

void add_blocks(c10::SmallVector<Block, 8>& blocks, char* data, int64_t numel, int num_blocks, int64_t element_bytes) {
  const int64_t count = numel / num_blocks;
  for (int i = 0; i < num_blocks; ++i) blocks.push_back({data + i * count * element_bytes, count});
}

}  // namespace

void Call::add_input(const at::Tensor& tensor, int num_blocks) {
  tensors.push_back(tensor.is_contiguous() ? tensor : tensor.detach().contiguous());
  char* data = static_cast<char*>(const_cast<void*>(tensors.back().const_data_ptr()));
  add_blocks(in, data, tensor.numel(), num_blocks, element_bytes());
}

void Call::add_output(const at::Tensor& tensor, int num_blocks) {
  if (tensor.is_contiguous()) {
    tensors.push_back(tensor);
  } else {
    tensors.push_back(tensor.detach().contiguous());
    copy_back.emplace_back(tensor, tensors.back());
  }
  add_blocks(out, static_cast<char*>(tensors.back().mutable_data_ptr()), tensor.numel(), num_blocks, element_bytes());
}

void Call::finish() {
  if (!copy_back.empty()) {
    c10::NoGradGuard no_grad;
    for (auto& [target, stand_in] : copy_back) target.detach().copy_(stand_in);
  }
  tensors.clear();
  copy_back.clear();
}

std::string Call::describe() const {
  if (tensors.empty()) return op == Op::kBarrier ? "no data" : name_of_dtype(dtype);
  return str(name_of_dtype(dtype), " ", bracketed(tensors[0].sizes()), tensors.size() > 1 ? str(" + ", tensors.size() - 1, " more") : "");
}

const Block& input_block(const Call& call, int num_ranks, int tensor, int to) {
  switch (call.op) {
    case Op::kReduceScatter:
      return call.in[tensor * num_ranks + to];
    case Op::kAllToAll:
    case Op::kScatter:
      return call.in[to];
    case Op::kAllGather:
      return call.in[tensor];
    case Op::kGather:
      return call.in[0];
    default:
      return call.out[tensor];  // in place
  }
}
const Block& output_block(const Call& call, int num_ranks, int tensor, int from) {
  switch (call.op) {
    case Op::kAllGather:
      return call.out[tensor * num_ranks + from];
    case Op::kAllToAll:
    case Op::kGather:
      return call.out[from];
    default:
      return call.out[tensor];
  }
}

CombineKernel kernel_of(at::ScalarType dtype, ReduceOp op) {
  const DtypeRow* row = find_dtype(dtype);
  if (row == nullptr) {
    throw CollectiveError(
        str("no reductions of ", c10::toString(dtype), " (allowed: f64 f32 bf16 f16 i8 u8 i16 u16 i32 u32 i64 u64 bool)"));
  }
  if (op == ReduceOp::kAvg && !c10::isFloatingType(dtype)) {
    throw CollectiveError(str("avg of ", row->name, " (allowed for avg: f64 f32 bf16 f16; use sum and divide as you need)"));
  }
  static constexpr CombineOp kOps[] = {CombineOp::kSum, CombineOp::kSum, CombineOp::kMin, CombineOp::kMax, CombineOp::kProd};
  return combine_kernel(ElementType(row->element_type), kOps[int(op)]);
}

void check_tensor(const at::Tensor& tensor, Op op, const char* role) {
  const auto fail = [&](const std::string& what) { throw CollectiveError(str(name_of(op), ": ", role, " ", what)); };
  if (!tensor.defined()) fail("is an undefined tensor");
  if (tensor.layout() != at::kStrided) fail(hyper_parallel::str("has layout ", tensor.layout(), " (allowed: strided)"));
  if (!tensor.device().is_cpu()) fail(hyper_parallel::str("is on ", tensor.device(), " (allowed: cpu)"));
  if (!tensor.has_storage()) fail("has no storage: pass the local tensor of a DTensor (to_local())");
}

}  // namespace detail
}  // namespace hyper_parallel
