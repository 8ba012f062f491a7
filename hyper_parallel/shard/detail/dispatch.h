// SPDX-License-Identifier: Apache-2.0
// The adapter between libtorch's dispatcher and the rules: kernels on our key for every op.
//
// Hot ops have a typed kernel each (typed_kernels.h), the tail one boxed functor per op, ops without a rule a kernel that throws.
#pragma once
#include <torch/library.h>

#include <memory>

#include "hyper_parallel/shard/detail/cache.h"

namespace hyper_parallel::detail {

// Facts of one op's schema, found once.
struct OpInfo {
  OpInfo(const c10::OperatorHandle& handle, const OpRow& op_row);
  const void* key() const { return this; }

  c10::OperatorHandle op;
  const OpRow* row;
  size_t num_arguments, num_returns;
  uint64_t dropped = 0;  // bit i: the value of argument i doesn't enter the key
  int written = -1;      // first argument that is written to, -1 if none
  bool view = false;
  std::vector<int> returned;  // per return: the argument that it is, -1 for a new value
};

[[gnu::noinline, gnu::cold]] const Propagation* miss(const OpInfo& info, const Key& key, std::span<const c10::IValue> arguments);
// Everything but finding the propagation; arguments on top of `stack` are replaced by results.
void run_boxed(const OpInfo& info, const Propagation& propagation, Stack& stack);

// An out= form: the op without out tensors, whose result is copied into them under their placements.
class OutKernel final : public c10::OperatorKernel {
 public:
  OutKernel(c10::OperatorHandle form, c10::OperatorHandle functional) : form_(form), functional_(functional) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack);

 private:
  c10::OperatorHandle form_, functional_;
};

// squeeze_ and its kin: the view, whose shape and local tensor self takes over.
class InplaceViewKernel final : public c10::OperatorKernel {
 public:
  InplaceViewKernel(c10::OperatorHandle form, c10::OperatorHandle functional) : form_(form), functional_(functional) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack);

 private:
  c10::OperatorHandle form_, functional_;
};

// An op without a rule: throws, or computes on gathered inputs (policy.h).
void run_without_rule(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack);

// Throws if `tensor`, about to be written to, is a view whose memory redistribution separated from its base's.
[[gnu::noinline]] void check_view_memory(const at::Tensor& tensor);
C10_ALWAYS_INLINE void check_written(const at::Tensor& tensor) {
  if (C10_UNLIKELY(tensor.unsafeGetTensorImpl()->autograd_meta() != nullptr)) check_view_memory(tensor);
}

// Makes a row's kernel; the op may have had run_without_rule before.
void register_row(const OpRow& row);

class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(OpInfo info) : info_(std::move(info)) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack);

 private:
  OpInfo info_;
};

// Registers a typed kernel if the op has one; each returns whether it did.
bool register_typed_views(torch::Library& library, const OpInfo& info);
bool register_typed_math(torch::Library& library, const OpInfo& info);

// Once per process, when the first DTensor is made.
void register_kernels();

}  // namespace hyper_parallel::detail
