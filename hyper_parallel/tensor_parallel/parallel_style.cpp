// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/tensor_parallel/parallel_style.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <numeric>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/differentiable.h"
#include "hyper_parallel/dtensor/dtensor.h"

namespace hyper_parallel {

namespace cd = collectives::differentiable;

void StyleTarget::fail(const std::string& style, const std::string& why) const {
  throw LayoutError(str("parallelize_module: ", style, " on \"", name, "\": ", why));
}

ParallelRegion::ParallelRegion(DeviceMesh mesh) : mesh_(std::move(mesh)), group_(mesh_.group(0)) {
  if (mesh_.num_axes() != 1) throw LayoutError(str("parallelize_module: the mesh must have one axis, not ", mesh_.to_string()));
}

IndexRange ParallelRegion::chunk(int64_t whole) const {
  const Interval interval = chunk_of(whole, size(), rank());
  return {interval.begin, interval.end};
}

std::vector<int64_t> ParallelRegion::chunk_sizes(int64_t whole) const {
  std::vector<int64_t> sizes;
  for (int64_t r = 0; r < size(); ++r) sizes.push_back(chunk_of(whole, size(), r).size());
  return sizes;
}

const ProcessGroup& ParallelRegion::neighbours(int count) {
  ProcessGroup& made = neighbours_[count];
  if (!made) made = group_.split(group_.rank() / count, group_.rank(), str(group_.name(), ".neighbours", count));
  return made;
}

void ParallelRegion::hold(const StyleTarget& target, Parameter& parameter, TensorPart part, ParameterSharing sharing) {
  std::erase_if(part.ranges, [](const IndexRange& range) { return range.size() == 0; });
  const auto [place, fresh] = sharing_.try_emplace(&parameter, sharing);
  const auto fail = [&](const char* why) {
    throw LayoutError(str("parallelize_module: \"", target.name, "\": two styles want ", why, parameter.name));
  };
  if (!fresh && !(parameter.part() == part)) fail("different parts of ");
  if (!fresh && !(place->second == sharing)) fail("different sums of the gradient of ");
  auto& holders = holders_[&parameter];
  if (std::find(holders.begin(), holders.end(), &target.module) != holders.end()) fail("to hold ");
  holders.push_back(&target.module);
  if (fresh && !part.is_whole()) parameter.hold(std::move(part));
}

std::vector<int64_t> ParallelRegion::exchanged_sizes(const at::Tensor& x, int64_t dim) const {
  const auto options = at::TensorOptions().dtype(at::kLong).device(x.device());
  at::Tensor all = at::empty({size()}, options);
  group_.all_gather(all, at::full({1}, x.size(dim), options)).wait();
  all = all.to(at::kCPU);
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + size()};
}

at::Tensor ParallelRegion::move(const at::Tensor& x, const Placement& from, const Placement& to, GradientOf gradient,
                                std::span<const int64_t> sizes) {
  const auto wrapped = [&x](int64_t dim) { return dim < 0 ? dim + x.dim() : dim; };
  const bool term = gradient == GradientOf::kTerm;
  if (to.is_partial() && from.is_partial()) return x;
  if (size() == 1 && !to.is_partial()) return x;
  if (from.is_replicate() && to.is_replicate()) return term ? cd::copy_to_group(group_, x) : x;
  if (from.is_partial() && to.is_replicate()) return term ? cd::all_reduce(group_, x) : cd::reduce_from_group(group_, x);
  if (from.is_shard() && to.is_replicate()) {
    const int64_t dim = wrapped(from.dim);
    const std::vector<int64_t> parts = sizes.empty() ? exchanged_sizes(x, dim) : std::vector<int64_t>(sizes.begin(), sizes.end());
    return term ? cd::all_gather(group_, x, dim, parts) : cd::gather_from_group(group_, x, dim, parts);
  }
  if (to.is_shard() && (from.is_replicate() || from.is_partial())) {
    const int64_t dim = wrapped(to.dim), whole = x.size(dim);
    const std::vector<int64_t> parts = sizes.empty() ? chunk_sizes(whole) : std::vector<int64_t>(sizes.begin(), sizes.end());
    return from.is_partial() ? cd::reduce_scatter(group_, x, dim, parts) : cd::scatter_to_group(group_, x, dim, parts);
  }
  if (from.is_shard() && to.is_shard()) {
    if (wrapped(from.dim) == wrapped(to.dim)) return x;
    return move(move(x, from, replicate(), GradientOf::kWhole), replicate(), to, gradient, sizes);
  }
  throw LayoutError(str("tensor parallel: a tensor can't go from ", from.to_string(), " to ", to.to_string()));
}

bool ParallelRegion::was_entered(const at::Tensor& x) {
  std::erase_if(all_entered_, [](const WeakTensor& weak) { return weak.expired(); });
  return std::any_of(all_entered_.begin(), all_entered_.end(),
                     [&x](const WeakTensor& weak) { return weak._unsafe_get_target() == x.unsafeGetTensorImpl(); });
}

at::Tensor ParallelRegion::enter(const at::Tensor& x, const Placement& from) {
  if (was_entered(x)) return x;
  const bool graph = at::GradMode::is_enabled() && x.requires_grad();
  const int64_t version = x.is_inference() ? -1 : static_cast<int64_t>(x._version());  // -1: a change in place wouldn't show
  const bool same = input_.defined() && x.is_same(input_) && input_from_ == from && input_version_ == version && input_graph_ == graph;
  if (same && version >= 0) return entered_;
  entered_ = move(x, from, replicate(), GradientOf::kTerm);
  input_ = x;
  input_from_ = from;
  input_version_ = version;
  input_graph_ = graph;
  if (!entered_.is_same(x)) all_entered_.emplace_back(entered_.getIntrusivePtr());
  return entered_;
}

void ParallelRegion::forget() {
  input_.reset();
  entered_.reset();
}

at::Tensor ParallelRegion::local(const at::Tensor& x, const Placement& placement) const {
  if (!is_dtensor(x)) return x;
  return DTensor(x).redistribute(Layout(mesh_, {placement})).to_local();
}

at::Tensor ParallelRegion::wrap(const at::Tensor& x, const Placement& placement) const {
  const Layout layout(mesh_, {placement});
  if (!placement.is_shard()) return from_local(x, layout);
  const int64_t dim = placement.dim < 0 ? placement.dim + x.dim() : placement.dim;
  const std::vector<int64_t> parts = exchanged_sizes(x, dim);
  Shape sizes(x.sizes().begin(), x.sizes().end());
  sizes[static_cast<size_t>(dim)] = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  if (parts != chunk_sizes(sizes[static_cast<size_t>(dim)]))
    throw LayoutError(hp::str("tensor parallel: sizes ", parts, " along dim ", dim, " are no chunks of a DTensor"));
  return from_local(x, layout, sizes);
}

}  // namespace hyper_parallel
