// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/detail/redistribute_steps.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::detail {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor empty_like_local(const at::Tensor& local, const Shape& shape) { return at::empty(shape, local.options()); }

at::Tensor concatenate(const Tensors& parts, int dim, const at::Tensor& model, const Shape& shape) {
  if (parts.empty()) return empty_like_local(model, shape);
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
}

// Shape of the local tensor of the rank that differs from this one in `axis` only.
Shape peer_shape(const Spec* spec, int axis, int64_t index) {
  auto coordinates = own_coordinates(spec->mesh());
  coordinates[axis] = index;
  return spec->local_shape(coordinates);
}

// The part of `local` (not sharded by `axis` yet) that coordinate `index` gets under `after`.
at::Tensor part_for(const Spec* after, int axis, const at::Tensor& local, int64_t index) {
  const Placement& placement = after->placement(axis);
  const Shape shape = peer_shape(after, axis, index);
  if (placement.is_ragged()) {
    const int64_t begin = std::accumulate(placement.sizes.begin(), placement.sizes.begin() + index, int64_t{0});
    Shape flat{-1};
    flat.insert(flat.end(), shape.begin() + 1, shape.end());
    if (local.numel() == 0) return empty_like_local(local, shape);
    return local.contiguous().view(flat).narrow(0, begin, shape[0]);
  }
  Tensors parts;
  for (const Interval& part : parts_of(placement, local.size(placement.dim), after->mesh().size(axis), index))
    parts.push_back(local.narrow(placement.dim, part.begin, part.size()));
  return concatenate(parts, placement.dim, local, shape);
}

// Inverse of part_for: `parts[index]` came from coordinate `index` under `before`.
at::Tensor join_parts(const Spec* before, const Shape& shape, int axis, const Tensors& parts) {
  const Placement& placement = before->placement(axis);
  if (placement.is_ragged()) return at::cat(parts, 0).view(shape);
  if (placement.kind == Placement::Kind::kShard) return parts.size() == 1 ? parts[0] : at::cat(parts, placement.dim);
  at::Tensor result = empty_like_local(parts[0], shape);
  for (size_t index = 0; index < parts.size(); ++index) {
    int64_t position = 0;
    for (const Interval& part : parts_of(placement, shape[placement.dim], int64_t(parts.size()), int64_t(index))) {
      result.narrow(placement.dim, part.begin, part.size()).copy_(parts[index].narrow(placement.dim, position, part.size()));
      position += part.size();
    }
  }
  return result;
}

at::Tensor slice(const RedistributeStep& step, const Spec* after, const at::Tensor& local) {
  return part_for(after, step.axis, local, after->mesh().coordinate(step.axis)).contiguous();
}

at::Tensor all_gather(const RedistributeStep& step, const Spec* before, const Spec* after, const at::Tensor& local) {
  const ProcessGroup& group = before->mesh().group(step.axis);
  const Placement& placement = before->placement(step.axis);
  std::vector<Shape> shapes;
  for (int index = 0; index < group.size(); ++index) shapes.push_back(peer_shape(before, step.axis, index));
  const bool even = std::adjacent_find(shapes.begin(), shapes.end(), std::not_equal_to<>()) == shapes.end();
  if (even && placement == shard(0)) {
    at::Tensor result = empty_like_local(local, after->local_shape());
    group.all_gather(result, local.contiguous()).wait();
    return result;
  }
  Tensors parts;
  if (even) {
    Shape stacked{group.size()};
    stacked.insert(stacked.end(), shapes[0].begin(), shapes[0].end());
    const at::Tensor gathered = empty_like_local(local, stacked);
    group.all_gather(gathered, local.contiguous()).wait();
    for (int index = 0; index < group.size(); ++index) parts.push_back(gathered.select(0, index));
  } else {
    for (const Shape& shape : shapes) parts.push_back(empty_like_local(local, shape));
    group.all_gather(parts, local.contiguous()).wait();
  }
  return join_parts(before, after->local_shape(), step.axis, parts).contiguous();
}

Tensors parts_for_all(const Spec* after, int axis, const at::Tensor& local) {
  Tensors parts;
  for (int64_t index = 0; index < after->mesh().size(axis); ++index) parts.push_back(part_for(after, axis, local, index).contiguous());
  return parts;
}

at::Tensor all_to_all(const RedistributeStep& step, const Spec* before, const Spec* after, const at::Tensor& local) {
  const Tensors inputs = parts_for_all(after, step.axis, local);
  Tensors outputs;
  for (int64_t index = 0; index < before->mesh().size(step.axis); ++index) {
    Shape shape = after->local_shape();
    shape[step.from_dim] = peer_shape(before, step.axis, index)[step.from_dim];
    outputs.push_back(empty_like_local(local, shape));
  }
  before->mesh().group(step.axis).all_to_all(outputs, inputs).wait();
  return join_parts(before, after->local_shape(), step.axis, outputs).contiguous();
}

// Sums of complex numbers are sums of their parts. Shares memory with a tensor that isn't lazily conjugated.
at::Tensor as_summed(const at::Tensor& tensor, ReduceOp reduce) {
  const bool parts = tensor.is_complex() && (reduce == ReduceOp::kSum || reduce == ReduceOp::kAvg);
  return parts ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

at::Tensor reduce_scatter(const RedistributeStep& step, const Spec* before, const Spec* after, const at::Tensor& local) {
  const at::Tensor result = empty_like_local(local, after->local_shape());
  const ReduceOp reduce = before->placement(step.axis).reduce;
  Tensors parts = parts_for_all(after, step.axis, local);
  for (at::Tensor& part : parts) part = as_summed(part, reduce);
  before->mesh().group(step.axis).reduce_scatter(as_summed(result, reduce), parts, reduce).wait();
  return result;
}

at::Tensor all_reduce(const RedistributeStep& step, const Spec* before, const at::Tensor& local) {
  at::Tensor result = local.clone(at::MemoryFormat::Contiguous);
  const ReduceOp reduce = before->placement(step.axis).reduce;
  before->mesh().group(step.axis).all_reduce(as_summed(result, reduce), reduce).wait();
  return result;
}

at::Tensor keep_term(const RedistributeStep& step, const Spec* after, const at::Tensor& local) {
  if (after->mesh().coordinate(step.axis) == 0) return local;
  switch (after->placement(step.axis).reduce) {
    case ReduceOp::kSum:
      return at::zeros_like(local, at::MemoryFormat::Contiguous);
    case ReduceOp::kProd:
      return at::full_like(local, 1);
    default:
      return local;  // the average, maximum or minimum of equal terms is the term
  }
}

// ---- boxes over the whole mesh

// Whether `source` provides for `target`: on axes that don't shard the source every rank has a copy (or its own Partial term).
bool provides(const Spec* from, std::span<const int64_t> source, std::span<const int64_t> target) {
  for (size_t axis = 0; axis < source.size(); ++axis) {
    const Placement& placement = from->placement(int(axis));
    if (!placement.is_shard() && !placement.is_ragged() && source[axis] != target[axis]) return false;
  }
  return true;
}

// Calls visit(piece of `from` at source, piece of `to` at target, shared box) in an order that both sides derive alike.
template <class Visit>
void for_each_shared_box(const Spec* from, std::span<const int64_t> source, const Spec* to, std::span<const int64_t> target,
                         const Visit& visit) {
  if (!provides(from, source, target)) return;
  const auto give = from->pieces(source), take = to->pieces(target);
  for (const ShardPiece& giving : give)
    for (const ShardPiece& taking : take)
      if (auto box = intersect(giving.box, taking.box)) visit(giving, taking, *box);
}

at::Tensor move_boxes(const Spec* before, const Spec* after, const at::Tensor& local_in) {
  const DeviceMesh& mesh = before->mesh();
  const at::Tensor local = local_in.contiguous();
  const auto here = own_coordinates(mesh);
  Tensors inputs, outputs;
  for (int64_t peer = 0; peer < mesh.size(); ++peer) {
    const auto there = coordinates_of(mesh, peer);
    Tensors blocks{at::empty({0}, local.options())};
    for_each_shared_box(before, here, after, there, [&](const auto& giving, const auto&, const Box& box) {
      blocks.push_back(block_of(local, giving, box).reshape({-1}));
    });
    inputs.push_back(at::cat(blocks, 0));
    int64_t numel = 0;
    for_each_shared_box(before, there, after, here, [&](const auto&, const auto&, const Box& box) { numel += box.numel(); });
    outputs.push_back(at::empty({numel}, local.options()));
  }
  mesh.group().all_to_all(outputs, inputs).wait();
  const at::Tensor result = empty_like_local(local, after->local_shape());
  for (int64_t peer = 0; peer < mesh.size(); ++peer) {
    int64_t position = 0;
    for_each_shared_box(before, coordinates_of(mesh, peer), after, here, [&](const auto&, const auto& taking, const Box& box) {
      block_of(result, taking, box).copy_(outputs[peer].narrow(0, position, box.numel()).view(box.sizes));
      position += box.numel();
    });
  }
  return result;
}

// ---- several tensors in one collective: the flat parts for (or from) one rank lie one after another

at::Tensor flat(const at::Tensor& tensor) { return tensor.contiguous().view({-1}); }

// Cuts `buffer` into tensors of these shapes.
Tensors cut(const at::Tensor& buffer, const std::vector<Shape>& shapes) {
  Tensors parts;
  int64_t position = 0;
  for (const Shape& shape : shapes) {
    const int64_t numel = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    parts.push_back(buffer.narrow(0, position, numel).view(shape));
    position += numel;
  }
  return parts;
}

at::Tensor buffer_for(const std::vector<Shape>& shapes, const at::Tensor& model) {
  int64_t numel = 0;
  for (const Shape& shape : shapes) numel += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return at::empty({numel}, model.options());
}

using Uses = std::span<StepUse* const>;

// What rank `index` of the axis gives to an all-gather, or to this rank in an all-to-all.
Shape shape_from(const StepUse& use, int64_t index) {
  Shape shape = peer_shape(use.before, use.step->axis, index);
  if (use.step->kind != RedistributeStep::Kind::kAllToAll) return shape;
  Shape after = use.after->local_shape();
  after[use.step->from_dim] = shape[use.step->from_dim];
  return after;
}

void gather_together(Uses uses, const ProcessGroup& group, bool all_to_all) {
  const at::Tensor& model = uses[0]->local;
  Tensors inputs, outputs;
  std::vector<std::vector<Shape>> shapes(group.size());
  for (int index = 0; index < group.size(); ++index) {
    Tensors parts;
    for (const StepUse* use : uses) {
      shapes[index].push_back(shape_from(*use, index));
      if (all_to_all || index == 0)
        parts.push_back(flat(all_to_all ? part_for(use->after, use->step->axis, use->local, index) : use->local));
    }
    if (!parts.empty()) inputs.push_back(at::cat(parts, 0));
    outputs.push_back(buffer_for(shapes[index], model));
  }
  all_to_all ? group.all_to_all(outputs, inputs).wait() : group.all_gather(outputs, inputs[0]).wait();
  std::vector<Tensors> parts(uses.size());
  for (int index = 0; index < group.size(); ++index) {
    const Tensors pieces = cut(outputs[index], shapes[index]);
    for (size_t use = 0; use < uses.size(); ++use) parts[use].push_back(pieces[use]);
  }
  for (size_t use = 0; use < uses.size(); ++use)
    uses[use]->local = join_parts(uses[use]->before, uses[use]->after->local_shape(), uses[use]->step->axis, parts[use])
                           .clone(at::MemoryFormat::Contiguous);
}

void reduce_together(Uses uses, const ProcessGroup& group, bool scatter) {
  const ReduceOp reduce = uses[0]->before->placement(uses[0]->step->axis).reduce;
  std::vector<Shape> shapes;
  for (const StepUse* use : uses) shapes.push_back(use->after->local_shape());
  const at::Tensor result = buffer_for(shapes, uses[0]->local);
  Tensors inputs;
  for (int index = 0; index < (scatter ? group.size() : 1); ++index) {
    Tensors parts;
    for (const StepUse* use : uses) parts.push_back(flat(scatter ? part_for(use->after, use->step->axis, use->local, index) : use->local));
    inputs.push_back(scatter ? as_summed(at::cat(parts, 0), reduce) : at::cat(parts, 0));
  }
  if (scatter)
    group.reduce_scatter(as_summed(result, reduce), inputs, reduce).wait();
  else
    group.all_reduce(as_summed(inputs[0], reduce), reduce).wait();
  const Tensors parts = cut(scatter ? result : inputs[0], shapes);
  for (size_t use = 0; use < uses.size(); ++use) uses[use]->local = parts[use].clone();
}

}  // namespace

at::Tensor block_of(const at::Tensor& contiguous_local, const ShardPiece& piece, const Box& box) {
  int64_t offset = piece.offset + contiguous_local.storage_offset();
  for (size_t dim = 0; dim < box.sizes.size(); ++dim) offset += (box.offsets[dim] - piece.box.offsets[dim]) * piece.strides[dim];
  return contiguous_local.as_strided(box.sizes, piece.strides, offset);
}

void run_steps_together(std::span<StepUse* const> uses) {
  using Kind = RedistributeStep::Kind;
  const RedistributeStep& step = *uses[0]->step;
  if (uses.size() == 1 || step.kind == Kind::kMoveBoxes) {
    for (StepUse* use : uses) use->local = run_step(*use->step, use->before, use->after, use->local);
    return;
  }
  const ProcessGroup& group = uses[0]->before->mesh().group(step.axis);
  if (step.kind == Kind::kAllGather || step.kind == Kind::kAllToAll)
    gather_together(uses, group, step.kind == Kind::kAllToAll);
  else
    reduce_together(uses, group, step.kind == Kind::kReduceScatter);
}

at::Tensor run_step(const RedistributeStep& step, const Spec* before, const Spec* after, const at::Tensor& local) {
  using Kind = RedistributeStep::Kind;
  switch (step.kind) {
    case Kind::kSlice:
      return slice(step, after, local);
    case Kind::kAllGather:
      return all_gather(step, before, after, local);
    case Kind::kAllToAll:
      return all_to_all(step, before, after, local);
    case Kind::kReduceScatter:
      return reduce_scatter(step, before, after, local);
    case Kind::kAllReduce:
      return all_reduce(step, before, local);
    case Kind::kKeepTerm:
      return keep_term(step, after, local);
    case Kind::kMoveBoxes:
      return move_boxes(before, after, local);
  }
  return local;
}

}  // namespace hyper_parallel::detail
