// SPDX-License-Identifier: Apache-2.0
// Small helpers of the rule functions in ops/*.cpp.
#pragma once
#include <algorithm>

#include "hyper_parallel/shard/propagate.h"

namespace hyper_parallel::detail {

inline constexpr int kNone = Factorization::kNone;

inline int64_t wrapped(int64_t dim, size_t dims) { return dim < 0 ? dim + int64_t(std::max<size_t>(dims, 1)) : dim; }
inline int64_t numel_of(const Shape& sizes) {
  int64_t numel = 1;
  for (int64_t size : sizes) numel *= size;
  return numel;
}

// A factor of its own for each dim; dims of size 1 have none.
inline std::vector<int> new_factors(const Shape& sizes, Factorization& f) {
  std::vector<int> factors;
  for (int64_t size : sizes) factors.push_back(size == 1 ? kNone : f.add_factor(size));
  return factors;
}
inline std::vector<int> no_factors(const Shape& sizes) { return std::vector<int>(sizes.size(), kNone); }

// Everything whole; the default for inputs that a rule doesn't mention.
inline void start_whole(const OpCall& call, Factorization& f) {
  f.inputs.clear();
  for (const TensorUse& use : call.tensors) f.inputs.push_back(no_factors(use.sizes));
}

// The op's index among the tensors, or -1 if the op has no such argument or it is absent.
inline int find_tensor(const OpCall& call, const char* name) {
  const auto index = call.op->schema().argumentIndexWithName(name);
  if (!index) return -1;
  for (size_t tensor = 0; tensor < call.tensors.size(); ++tensor)
    if (call.tensors[tensor].argument == int(*index) && call.tensors[tensor].present) return int(tensor);
  return -1;
}

// ---- of local calls: the arguments lie on top of the stack

inline c10::IValue& local_argument(Stack& stack, const c10::OperatorHandle& op, const char* name) {
  return stack[stack.size() - op.schema().arguments().size() + *op.schema().argumentIndexWithName(name)];
}
inline c10::IValue& local_argument(Stack& stack, const c10::OperatorHandle& op, size_t index) {
  return stack[stack.size() - op.schema().arguments().size() + index];
}
template <class... Results>
void replace_arguments(Stack& stack, const c10::OperatorHandle& op, Results&&... results) {
  stack.resize(stack.size() - op.schema().arguments().size());
  (stack.emplace_back(std::forward<Results>(results)), ...);
}

// Axes that cut a tensor in some way, and the reduction over them.
inline std::vector<int64_t> cutting_axes(const Spec* spec) {
  std::vector<int64_t> axes;
  for (size_t axis = 0; spec != nullptr && axis < spec->placements().size(); ++axis)
    if (spec->placements()[axis].is_shard() || spec->placements()[axis].is_ragged()) axes.push_back(int64_t(axis));
  return axes;
}
inline void all_reduce_over(const Spec* spec, const at::Tensor& value, ReduceOp reduce) {
  for (int64_t axis : cutting_axes(spec)) spec->mesh().group(int(axis)).all_reduce(value, reduce).wait();
}

}  // namespace hyper_parallel::detail
