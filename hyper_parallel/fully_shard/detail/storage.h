// SPDX-License-Identifier: Apache-2.0
// The memory of flat buffers, which comes and goes while tensors alias it. All of the engine that depends on the device (CPU) is here.
//
//   at::Tensor flat = make_flat(12, at::kFloat), leaf = alias(flat, 0, {3, 4});   // aliases first: they need the memory to be there
//   release(flat);                                                               // flat and leaf must not be read
//   allocate(flat);                                                              // both see the new memory
#pragma once
#include <ATen/core/Tensor.h>

namespace hyper_parallel::fsdp {

at::Tensor make_flat(int64_t numel, at::ScalarType dtype);  // [numel], contents undefined
void allocate(const at::Tensor& flat);                      // contents undefined; no-op if it has memory
void release(const at::Tensor& flat);
// Elements [offset, ...) of flat's storage as a contiguous tensor with a version counter of its own, so that refills are unseen by
// autograd.
at::Tensor alias(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes);
void zero_range(const at::Tensor& flat, int64_t begin, int64_t end);
// to = from, to += from. Same number of elements; `to` contiguous.
void copy_into(const at::Tensor& to, const at::Tensor& from);
void add_into(const at::Tensor& to, const at::Tensor& from);
// Sum of squares in f64, the same order for the same numel.
double sum_of_squares(const at::Tensor& flat);

}  // namespace hyper_parallel::fsdp
