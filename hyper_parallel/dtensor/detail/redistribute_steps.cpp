// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/detail/redistribute_steps.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
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

at::Tensor reduce_scatter(const RedistributeStep& step, const Spec* before, const Spec* after, const at::Tensor& local) {
  const at::Tensor result = empty_like_local(local, after->local_shape());
  before->mesh()
      .group(step.axis)
      .reduce_scatter(result, parts_for_all(after, step.axis, local), before->placement(step.axis).reduce)
      .wait();
  return result;
}

at::Tensor all_reduce(const RedistributeStep& step, const Spec* before, const at::Tensor& local) {
  at::Tensor result = local.clone(at::MemoryFormat::Contiguous);
  before->mesh().group(step.axis).all_reduce(result, before->placement(step.axis).reduce).wait();
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

at::Tensor block_of(const at::Tensor& contiguous_local, const ShardPiece& piece, const Box& box) {
  int64_t offset = piece.offset + contiguous_local.storage_offset();
  for (size_t dim = 0; dim < box.sizes.size(); ++dim) offset += (box.offsets[dim] - piece.box.offsets[dim]) * piece.strides[dim];
  return contiguous_local.as_strided(box.sizes, piece.strides, offset);
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

}  // namespace

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
