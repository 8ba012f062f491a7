// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/dtensor.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/dtensor/detail/cross_mesh.h"
#include "hyper_parallel/dtensor/detail/local_shapes.h"

namespace hyper_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Specs live for ever, so the graph may hold them as plain numbers.
void save_spec(AutogradContext* context, const char* name, const Spec* spec) {
  context->saved_data[name] = int64_t(reinterpret_cast<intptr_t>(spec));
}
const Spec* saved_spec(AutogradContext* context, const char* name) {
  return reinterpret_cast<const Spec*>(intptr_t(context->saved_data[name].toInt()));
}

std::vector<Placement> gradient_placements(const Spec* spec) {
  std::vector<Placement> placements = spec->placements();
  for (Placement& placement : placements)
    if (placement.is_partial()) placement = replicate();
  return placements;
}

at::Tensor moved(const DTensorImpl& source, const Spec* target) {
  if (!(source.spec()->mesh() == target->mesh()))
    return wrap_local(detail::cross_mesh_plan(source.spec(), target).run(source.local()), target);
  if (!target->mesh().contains_this_rank()) return wrap_local(source.local(), target);
  return wrap_local(redistribute_plan(source.spec(), target).run(source.local()), target);
}

const DTensorImpl& checked_impl(const at::Tensor& tensor, const char* what) {
  const DTensorImpl* impl = dtensor_impl(tensor);
  if (impl == nullptr)
    throw LayoutError(hyper_parallel::str(what, ": a plain tensor", tensor.defined() ? " of shape " : "",
                                          tensor.defined() ? tensor.sizes() : c10::IntArrayRef(),
                                          " where a DTensor is needed (see from_local, distribute_tensor)"));
  return *impl;
}

struct Redistribute : Function<Redistribute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, int64_t target) {
    const DTensorImpl& impl = checked_impl(input, "redistribute");
    save_spec(context, "from", impl.spec());
    return moved(impl, reinterpret_cast<const Spec*>(intptr_t(target)));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    at::Tensor gradient = gradients[0];
    const auto spec_of = [&] { return checked_impl(gradient, "redistribute backward").spec(); };
    const Spec* from = saved_spec(context, "from");
    if (!(spec_of()->mesh() == from->mesh()) && spec_of()->has_partial())
      gradient = moved(*dtensor_impl(gradient), with_placements(spec_of(), gradient_placements(spec_of())));
    const Layout layout(from->mesh(), gradient_placements(from));
    const Spec* target =
        spec_of()->layout() == layout ? spec_of() : intern_spec(layout, from->sizes(), spec_of()->dtype(), {}, from->device());
    return {target == spec_of() ? gradient : moved(*dtensor_impl(gradient), target), at::Tensor()};
  }
};

struct ToLocal : Function<ToLocal> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, int64_t gradient_spec) {
    save_spec(context, "gradient", reinterpret_cast<const Spec*>(intptr_t(gradient_spec)));
    const at::Tensor& local = checked_impl(input, "to_local").local();
    return local.detach();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    return {wrap_local(gradients[0].contiguous(), saved_spec(context, "gradient")), at::Tensor()};
  }
};

// d(global)/d(local) of a Partial input: 1 for a sum, 1/n for an average over n ranks.
double term_weight(const Spec* spec) {
  double weight = 1;
  for (int axis = 0; axis < spec->mesh().num_axes(); ++axis) {
    if (!spec->placement(axis).is_partial()) continue;
    if (spec->placement(axis).reduce == ReduceOp::kAvg)
      weight /= double(spec->mesh().size(axis));
    else if (spec->placement(axis).reduce != ReduceOp::kSum)
      throw LayoutError(str("from_local of ", spec->to_string(), " has no gradient (allowed: sum and avg); detach the local tensor"));
  }
  return weight;
}

struct FromLocal : Function<FromLocal> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& local, int64_t spec_word) {
    const Spec* spec = reinterpret_cast<const Spec*>(intptr_t(spec_word));
    save_spec(context, "spec", spec);
    if (local.requires_grad()) term_weight(spec);
    return wrap_local(local.detach(), spec);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    const Spec* spec = saved_spec(context, "spec");
    const DTensorImpl& gradient = checked_impl(gradients[0], "from_local backward");
    const Spec* target = with_placements(gradient.spec(), gradient_placements(spec));
    at::Tensor local = redistribute_plan(gradient.spec(), target).run(gradient.local());
    if (const double weight = term_weight(spec); weight != 1) local = local * weight;
    return {local, at::Tensor()};
  }
};

int64_t word_of(const Spec* spec) { return int64_t(reinterpret_cast<intptr_t>(spec)); }
bool records(const at::Tensor& tensor) { return tensor.requires_grad() && at::GradMode::is_enabled(); }

// Global strides in the local tensor's dim order, so that a transposed shard stays transposed as a whole.
Shape strides_like(const at::Tensor& local, const Shape& sizes) {
  if (local.is_contiguous() || local.dim() != int64_t(sizes.size())) return contiguous_strides(sizes);
  std::vector<int> order(sizes.size());
  for (size_t dim = 0; dim < order.size(); ++dim) order[dim] = int(dim);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return local.stride(a) > local.stride(b); });
  Shape strides(sizes.size(), 1);
  int64_t next = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    if (local.stride(*dim) == 0 && local.size(*dim) > 1) {
      strides[*dim] = 0;
      continue;
    }
    strides[*dim] = next;
    next *= std::max<int64_t>(sizes[*dim], 1);
  }
  return strides;
}

Shape derived_sizes(const at::Tensor& local, const Layout& layout) {
  Shape sizes = local.sizes().vec();
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    const Placement& placement = layout.placements()[axis];
    if (placement.is_ragged()) throw LayoutError("from_local under " + layout.to_string() + ": pass the global sizes for a ragged layout");
    if (!placement.is_shard()) continue;
    const int64_t dim = placement.dim < 0 ? placement.dim + local.dim() : placement.dim;
    if (dim < 0 || dim >= local.dim())
      throw LayoutError(hyper_parallel::str("from_local under ", layout.to_string(), ": the local tensor has shape ", local.sizes()));
    sizes[dim] *= layout.mesh().size(axis);
  }
  return sizes;
}

// Boxes of a state entry follow one another in memory; a piece that others interleave is cut until each part is one run.
void append_runs(const ShardPiece& piece, std::vector<ShardPiece>& runs) {
  int64_t expected = 1;
  bool one_run = true;
  size_t outermost = 0;
  for (size_t dim = piece.box.sizes.size(); dim-- > 0;) {
    if (piece.box.sizes[dim] == 1) continue;
    one_run &= piece.strides[dim] == expected;
    expected *= piece.box.sizes[dim];
    outermost = dim;
  }
  if (one_run) return runs.push_back(piece);
  for (int64_t index = 0; index < piece.box.sizes[outermost]; ++index) {
    ShardPiece part = piece;
    part.box.offsets[outermost] += index;
    part.box.sizes[outermost] = 1;
    part.offset += index * piece.strides[outermost];
    append_runs(part, runs);
  }
}

}  // namespace

DTensor::DTensor(at::Tensor tensor) : tensor_(std::move(tensor)) { checked_impl(tensor_, "DTensor"); }
const DTensorImpl* DTensor::impl() const { return &checked_impl(tensor_, "DTensor"); }
bool is_dtensor(const at::Tensor& tensor) { return dtensor_impl(tensor) != nullptr; }

at::Tensor DTensor::to_local() const {
  if (!records(tensor_)) return impl()->local();
  return ToLocal::apply(tensor_, word_of(with_placements(spec(), gradient_placements(spec()))));
}

at::Tensor DTensor::to_local(const Layout& gradient_layout) const {
  if (!records(tensor_)) return impl()->local();
  const Spec* gradient = intern_spec(gradient_layout, spec()->sizes(), spec()->dtype(), {}, spec()->device());
  if (gradient->local_shape() != spec()->local_shape())
    throw LayoutError(
        str("to_local of ", spec()->to_string(), ": a gradient with layout ", gradient_layout.to_string(), " has another local shape"));
  return ToLocal::apply(tensor_, word_of(gradient));
}

DTensor DTensor::redistribute(const std::vector<Placement>& placements) const { return redistribute(Layout(mesh(), placements)); }

DTensor DTensor::redistribute(const Layout& layout) const {
  if (layout == this->layout()) return *this;
  if (!(layout.mesh() == mesh()) && is_partial()) return reduce_partial().redistribute(layout);
  const Spec* target = intern_spec(layout, spec()->sizes(), spec()->dtype(), {}, spec()->device());
  if (target->mesh() == mesh() && target->placements() == spec()->placements()) return *this;
  return records(tensor_) ? Redistribute::apply(tensor_, word_of(target)) : moved(*impl(), target);
}

DTensor DTensor::reduce_partial() const { return is_partial() ? redistribute(gradient_placements(spec())) : *this; }
at::Tensor DTensor::full_tensor() const { return redistribute(Layout(mesh())).to_local(); }

StateEntry DTensor::state_entry(std::string name) const {
  if (is_partial()) throw LayoutError(str(name, ": a Partial tensor has no state: ", spec()->to_string(), "; call reduce_partial() first"));
  if (!impl()->local().is_contiguous()) throw LayoutError(str(name, ": the local tensor of ", spec()->to_string(), " is not contiguous"));
  StateEntry entry{std::move(name), spec()->sizes(), impl()->local().detach(), {}};
  std::vector<ShardPiece> runs;
  for (const ShardPiece& piece : spec()->pieces()) append_runs(piece, runs);
  std::sort(runs.begin(), runs.end(), [](const ShardPiece& a, const ShardPiece& b) { return a.offset < b.offset; });
  for (ShardPiece& run : runs) entry.boxes.push_back(std::move(run.box));
  return entry;
}

DTensor from_local(const at::Tensor& local, const Layout& layout, const Shape& sizes) {
  ensure_kernels();
  if (is_dtensor(local)) throw LayoutError("from_local: the local tensor is a DTensor already");
  const Shape global = sizes.empty() ? derived_sizes(local, layout) : sizes;
  const Spec* spec = intern_spec(layout, global, local.scalar_type(), strides_like(local, global), local.device());
  if (layout.mesh().contains_this_rank() && layout.mesh().outer_group().checks_calls()) detail::check_local_shapes(local, spec);
  if (spec->local_shape() != local.sizes())
    throw LayoutError(hyper_parallel::str("from_local: the local tensor has shape ", local.sizes(), ", but ", spec->to_string(), " needs ",
                                          spec->local_shape(), " here"));
  return records(local) ? FromLocal::apply(local, word_of(spec)) : wrap_local(local.detach(), spec);
}

DTensor from_uneven_local(const at::Tensor& local, const Layout& layout) {
  return from_local(local, layout, detail::sizes_from_ranks(local, layout));
}

DTensor distribute_tensor(const at::Tensor& whole, const Layout& layout, int source) {
  ensure_kernels();
  at::Tensor equal = whole;
  if (source >= 0 && layout.mesh().size() > 1) {
    equal = whole.detach().clone(at::MemoryFormat::Contiguous);
    layout.mesh().group().broadcast(equal, source).wait();
  }
  const DTensor replicated = from_local(equal, Layout(layout.mesh()));
  const DTensor result = replicated.redistribute(layout);
  const bool fresh = !dtensor_impl(result.tensor())->local().is_alias_of(whole);
  return fresh ? result : from_local(equal.clone(at::MemoryFormat::Contiguous), layout, whole.sizes().vec());
}

}  // namespace hyper_parallel
