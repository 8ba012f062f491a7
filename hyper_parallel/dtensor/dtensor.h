// SPDX-License-Identifier: Apache-2.0
// DTensor: a tensor spread over a mesh. It is an at::Tensor of the global shape, so ATen ops and autograd work on it (shard/ has their
// rules), that carries this rank's local tensor and a Spec.
//
//   Layout rows = Layout(mesh)("dp");
//   DTensor x = distribute_tensor(whole, rows);               // keeps this rank's slice of equal tensors
//   DTensor w = from_local(piece, Layout(mesh)("", "tp"), {512, 1536});
//   at::Tensor loss = at::mm(x, w).sum();                     // ops take and give at::Tensor; DTensor(loss) to look inside
//   at::Tensor all = DTensor(loss).full_tensor();             // all_reduce: the sum was Partial
//
// All of it is differentiable: a gradient flows back to the layout of the forward input, Partial inputs get a replicated one.
// Errors: LayoutError for wrong local shapes, plain tensors, layouts that can't be reached.
#pragma once
#include <ATen/core/Tensor.h>

#include <iosfwd>
#include <optional>
#include <string>

#include "hyper_parallel/dtensor/dtensor_impl.h"
#include "hyper_parallel/dtensor/redistribute.h"
#include "hyper_parallel/dtensor/state_dict.h"

namespace hyper_parallel {

class DTensor {
 public:
  DTensor() = default;
  DTensor(at::Tensor tensor);  // NOLINT: implicit both ways; LayoutError if `tensor` is a plain tensor
  operator const at::Tensor&() const { return tensor_; }
  const at::Tensor& tensor() const { return tensor_; }

  const Spec* spec() const { return impl()->spec(); }
  const Layout& layout() const { return spec()->layout(); }
  const DeviceMesh& mesh() const { return spec()->mesh(); }
  bool is_partial() const { return spec()->has_partial(); }

  // This rank's shard, sharing memory. Its gradient is taken to lie as the layout says (Partial axes: replicated), or as `gradient_layout`.
  at::Tensor to_local() const;
  at::Tensor to_local(const Layout& gradient_layout) const;
  // Collective. The same tensor if nothing changes. To another mesh (a sub-mesh, a flattened one, other ranks) it is collective over the
  // meshes' outer group: ranks outside this tensor's mesh call it too, on a tensor that from_local made of an empty one. A slice stands for
  // all slices of its axes; what they hold is taken to be the same.
  DTensor redistribute(const Layout& layout) const;
  DTensor redistribute(const std::vector<Placement>& placements) const;
  DTensor reduce_partial() const;  // Partial axes become replicated
  at::Tensor full_tensor() const;  // the whole tensor on every rank, plain

  StateEntry state_entry(std::string name) const;  // LayoutError while Partial
  // The Spec, this rank's boxes and a summary of its values (all of them if they are few).
  std::string to_string() const;

 private:
  const DTensorImpl* impl() const;
  at::Tensor tensor_;
};

bool is_dtensor(const at::Tensor& tensor);

std::ostream& operator<<(std::ostream& out, const DTensor& tensor);

// `local`: this rank's shard. `sizes` is the global shape; without it every rank must hold a shard of the same shape, and it is derived.
// In debug mode (HYPER_PARALLEL_DEBUG=collectives) ranks compare; LayoutError names those that disagree.
// Shares memory with `local`. Backward gives the local gradient under the same layout (Partial sum: the replicated one; average: over n).
DTensor from_local(const at::Tensor& local, const Layout& layout, const Shape& sizes = {});
// The same for shards of any sizes: collective, one small all_gather an axis, from which the global shape follows. LayoutError on all ranks
// unless the sizes are those that the layout gives to each. RaggedShard needs the sizes passed.
DTensor from_uneven_local(const at::Tensor& local, const Layout& layout);
// Every rank passes an equal `whole` (differentiable: its gradient is replicated); with `source` rank (of the mesh, >= 0) only that rank's
// values count and are broadcast first. Fresh memory.
DTensor distribute_tensor(const at::Tensor& whole, const Layout& layout, int source = -1);

}  // namespace hyper_parallel
