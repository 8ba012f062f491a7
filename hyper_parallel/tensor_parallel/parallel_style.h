// SPDX-License-Identifier: Apache-2.0
// A parallel style makes one module work on this rank's part: it takes parts of the parameters and hooks collectives before and after the
// module's call. Between modules tensors are plain local ones; no DTensor op runs on the way.
//
//   class MyStyle : public ParallelStyle {
//     std::string describe() const override { return "MyStyle"; }
//     void apply(const StyleTarget& target) const override {
//       target.region->hold(target, weight, {.dim = 0, .ranges = {target.region->chunk(weight.sizes[0])}});
//       target.module.add_hook(...);
//     }
//   };
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "hyper_parallel/dtensor/device_mesh.h"
#include "hyper_parallel/dtensor/parameter_sharing.h"
#include "hyper_parallel/dtensor/placement.h"
#include "hyper_parallel/nn/module.h"

namespace hyper_parallel {

class ParallelRegion;

struct StyleTarget {
  Module& module;
  std::string name;  // full, for messages
  std::shared_ptr<ParallelRegion> region;
  [[noreturn]] void fail(const std::string& style, const std::string& why) const;  // LayoutError
};

class ParallelStyle {
 public:
  virtual ~ParallelStyle() = default;
  virtual std::string describe() const = 0;
  virtual void apply(const StyleTarget& target) const = 0;
};

// What the gradient of a tensor that a module receives is on each rank: the whole one, or a term of it.
enum class GradientOf : uint8_t { kWhole, kTerm };

// One mesh axis and the modules that work together over it. Belongs to one rank, shared by its hooks.
class ParallelRegion {
 public:
  explicit ParallelRegion(DeviceMesh mesh);  // LayoutError unless 1-d
  const DeviceMesh& mesh() const { return mesh_; }
  const ProcessGroup& group() const { return group_; }
  int64_t size() const { return group_.size(); }
  int64_t rank() const { return group_.rank(); }
  // Of a dim of `whole` elements: this rank's range, and all ranks' sizes (torch.chunk's rule).
  IndexRange chunk(int64_t whole) const;
  std::vector<int64_t> chunk_sizes(int64_t whole) const;
  // `count` neighbouring ranks, collective, made once.
  const ProcessGroup& neighbours(int count);

  // Parameters. A tied one may be asked for by two modules, then alike; by one module once (LayoutError else).
  void hold(const StyleTarget& target, Parameter& parameter, TensorPart part, ParameterSharing sharing = {});
  const std::unordered_map<const Parameter*, ParameterSharing>& sharing() const { return sharing_; }

  // Activations. Differentiable. `sizes`: of all ranks along the sharded dim (from one dim to another: along the new one). Without them a
  // tensor is scattered into chunk_sizes, and before a gather the ranks tell each other their sizes, in one small collective more: no rank
  // can know them from its own. LayoutError where there is no way.
  at::Tensor move(const at::Tensor& x, const Placement& from, const Placement& to, GradientOf gradient,
                  std::span<const int64_t> sizes = {});
  // To replicated, for modules whose gradients are terms. A tensor that came out of enter() stays as it is. Siblings that are given the
  // same tensor get one result: one collective, not one each. forget() drops what is kept for the siblings.
  at::Tensor enter(const at::Tensor& x, const Placement& from);
  void forget();
  // A DTensor's local tensor under the placement; a plain tensor is that already.
  at::Tensor local(const at::Tensor& x, const Placement& placement) const;
  // A plain tensor as a DTensor. LayoutError if the ranks' sizes aren't those of chunks.
  at::Tensor wrap(const at::Tensor& x, const Placement& placement) const;

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  std::vector<int64_t> exchanged_sizes(const at::Tensor& x, int64_t dim) const;
  bool was_entered(const at::Tensor& x);

  const DeviceMesh mesh_;
  const ProcessGroup group_;
  std::unordered_map<int, ProcessGroup> neighbours_;
  std::unordered_map<const Parameter*, ParameterSharing> sharing_;
  std::unordered_map<const Parameter*, std::vector<const Module*>> holders_;
  std::vector<WeakTensor> all_entered_;  // those that are alive
  at::Tensor input_, entered_;
  Placement input_from_;
  int64_t input_version_ = 0;
  bool input_graph_ = false;
};

}  // namespace hyper_parallel
