// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/differentiable.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <numeric>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::collectives::differentiable {
namespace {

using Map = std::function<at::Tensor(const at::Tensor&)>;
using Sizes = std::vector<int64_t>;

struct MapHolder final : torch::CustomClassHolder {
  explicit MapHolder(Map m) : map(std::move(m)) {}
  Map map;
};

// Every collective here is linear: its backward is another one, applied to the gradient.
struct LinearMap : torch::autograd::Function<LinearMap> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Map& run, const Map& backward) {
    context->saved_data["backward"] = c10::IValue::make_capsule(c10::make_intrusive<MapHolder>(backward));
    return run(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    const auto holder = context->saved_data["backward"].toCapsule();
    return {static_cast<MapHolder&>(*holder).map(gradients[0].contiguous()), at::Tensor(), at::Tensor()};
  }
};

at::Tensor linear(const at::Tensor& x, const Map& run, const Map& backward) { return LinearMap::apply(x, run, backward); }

int64_t wrapped(const at::Tensor& x, int64_t dim) {
  const int64_t result = dim < 0 ? dim + x.dim() : dim;
  if (result < 0 || result >= x.dim()) throw CollectiveError(str("dim ", dim, " of a tensor of shape ", bracketed(x.sizes())));
  return result;
}

Sizes part_sizes(const ProcessGroup& group, int64_t size, std::span<const int64_t> sizes) {
  const int64_t n = group.size();
  if (sizes.empty()) {
    if (size % n != 0) throw CollectiveError(str("size ", size, " does not divide into ", n, " ranks (pass sizes)"));
    return Sizes(n, size / n);
  }
  if (int64_t(sizes.size()) != n || std::accumulate(sizes.begin(), sizes.end(), int64_t(0)) != size) {
    throw CollectiveError(str("sizes ", bracketed(sizes), " don't add up to ", size, " over ", n, " ranks"));
  }
  return Sizes(sizes.begin(), sizes.end());
}

Sizes gathered_sizes(const ProcessGroup& group, const at::Tensor& x, int64_t dim, std::span<const int64_t> sizes) {
  Sizes parts = sizes.empty() ? Sizes(group.size(), x.size(dim)) : Sizes(sizes.begin(), sizes.end());
  if (int(parts.size()) != group.size() || parts[group.rank()] != x.size(dim)) {
    throw CollectiveError(
        str("all_gather: sizes ", bracketed(parts), ", this rank (", group.rank(), " of ", group.size(), ") has ", x.size(dim)));
  }
  return parts;
}

at::Tensor sum_over(const ProcessGroup& group, const at::Tensor& x) {
  at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(y).wait();
  return y;
}

at::Tensor join_over(const ProcessGroup& group, const at::Tensor& x, int64_t dim, const Sizes& sizes) {
  std::vector<at::Tensor> parts;
  Sizes shape = x.sizes().vec();
  for (const int64_t size : sizes) {
    shape[dim] = size;
    parts.push_back(at::empty(shape, x.options()));
  }
  group.all_gather(parts, x).wait();
  return at::cat(parts, dim);
}

at::Tensor sum_and_part(const ProcessGroup& group, const at::Tensor& x, int64_t dim, const Sizes& sizes) {
  const std::vector<at::Tensor> parts = x.split_with_sizes(sizes, dim);
  const at::Tensor y = at::empty(parts[group.rank()].sizes(), x.options());
  group.reduce_scatter(y, parts).wait();
  return y;
}

at::Tensor transpose_over(const ProcessGroup& group, const at::Tensor& x, int64_t split_dim, int64_t join_dim) {
  const std::vector<at::Tensor> parts = x.split_with_sizes(part_sizes(group, x.size(split_dim), {}), split_dim);
  std::vector<at::Tensor> received;
  for (const at::Tensor& part : parts) received.push_back(at::empty(part.sizes(), x.options()));
  group.all_to_all(received, parts).wait();
  return at::cat(received, join_dim);
}

at::Tensor own_part(const ProcessGroup& group, const at::Tensor& x, int64_t dim, const Sizes& sizes) {
  return x.split_with_sizes(sizes, dim)[group.rank()].clone(at::MemoryFormat::Contiguous);
}

at::Tensor sum_at_root(const ProcessGroup& group, const at::Tensor& x, int root);

at::Tensor copy_of_root(const ProcessGroup& group, const at::Tensor& x, int root) {
  at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  group.broadcast(y, root).wait();
  return y;
}

at::Tensor sum_at_root(const ProcessGroup& group, const at::Tensor& x, int root) {
  const auto run = [group, root](const at::Tensor& value) {
    at::Tensor y = value.clone(at::MemoryFormat::Contiguous);
    group.reduce(y, root).wait();
    return group.rank() == root ? y : at::zeros_like(y);
  };
  return linear(x, run, [group, root](const at::Tensor& gradient) { return broadcast(group, gradient, root); });
}

}  // namespace

at::Tensor all_reduce(const ProcessGroup& group, const at::Tensor& x) {
  return linear(
      x, [&](const at::Tensor& value) { return sum_over(group, value); },
      [group](const at::Tensor& gradient) { return all_reduce(group, gradient); });
}

at::Tensor all_gather(const ProcessGroup& group, const at::Tensor& x, int64_t dim, std::span<const int64_t> sizes) {
  dim = wrapped(x, dim);
  const Sizes parts = gathered_sizes(group, x, dim, sizes);
  return linear(
      x, [&](const at::Tensor& value) { return join_over(group, value, dim, parts); },
      [group, dim, parts](const at::Tensor& gradient) { return reduce_scatter(group, gradient, dim, parts); });
}

at::Tensor reduce_scatter(const ProcessGroup& group, const at::Tensor& x, int64_t dim, std::span<const int64_t> sizes) {
  dim = wrapped(x, dim);
  const Sizes parts = part_sizes(group, x.size(dim), sizes);
  return linear(
      x, [&](const at::Tensor& value) { return sum_and_part(group, value, dim, parts); },
      [group, dim, parts](const at::Tensor& gradient) { return all_gather(group, gradient, dim, parts); });
}

at::Tensor all_to_all(const ProcessGroup& group, const at::Tensor& x, int64_t split_dim, int64_t join_dim) {
  split_dim = wrapped(x, split_dim);
  join_dim = wrapped(x, join_dim);
  return linear(
      x, [&](const at::Tensor& value) { return transpose_over(group, value, split_dim, join_dim); },
      [group, split_dim, join_dim](const at::Tensor& gradient) { return all_to_all(group, gradient, join_dim, split_dim); });
}

at::Tensor all_to_all_rows(const ProcessGroup& group, const at::Tensor& x, std::span<const int64_t> output_splits,
                           std::span<const int64_t> input_splits) {
  wrapped(x, 0);
  const Sizes outputs(output_splits.begin(), output_splits.end()), inputs(input_splits.begin(), input_splits.end());
  const auto run = [&](const at::Tensor& value) {
    Sizes shape = value.sizes().vec();
    shape[0] = std::accumulate(outputs.begin(), outputs.end(), int64_t(0));
    const at::Tensor y = at::empty(shape, value.options());
    group.all_to_all(y, value.contiguous(), outputs, inputs).wait();
    return y;
  };
  return linear(x, run, [group, outputs, inputs](const at::Tensor& gradient) { return all_to_all_rows(group, gradient, inputs, outputs); });
}

at::Tensor broadcast(const ProcessGroup& group, const at::Tensor& x, int root) {
  return linear(
      x, [&](const at::Tensor& value) { return copy_of_root(group, value, root); },
      [group, root](const at::Tensor& gradient) { return sum_at_root(group, gradient, root); });
}

at::Tensor shift(const ProcessGroup& group, const at::Tensor& x, int offset) {
  const int n = group.size();
  const int step = (offset % n + n) % n;
  const auto run = [&](const at::Tensor& value) {
    if (step == 0) return value.clone();
    at::Tensor y = at::empty(value.sizes(), value.options());
    Work sent = group.send(value.contiguous(), (group.rank() + step) % n);
    group.recv(y, (group.rank() + n - step) % n).wait();
    sent.wait();
    return y;
  };
  return linear(x, run, [group, step](const at::Tensor& gradient) { return shift(group, gradient, -step); });
}

at::Tensor copy_to_group(const ProcessGroup& group, const at::Tensor& x) {
  return linear(
      x, [](const at::Tensor& value) { return value; }, [group](const at::Tensor& gradient) { return reduce_from_group(group, gradient); });
}

at::Tensor reduce_from_group(const ProcessGroup& group, const at::Tensor& x) {
  return linear(
      x, [&](const at::Tensor& value) { return sum_over(group, value); },
      [group](const at::Tensor& gradient) { return copy_to_group(group, gradient); });
}

at::Tensor scatter_to_group(const ProcessGroup& group, const at::Tensor& x, int64_t dim, std::span<const int64_t> sizes) {
  dim = wrapped(x, dim);
  const Sizes parts = part_sizes(group, x.size(dim), sizes);
  return linear(
      x, [&](const at::Tensor& value) { return own_part(group, value, dim, parts); },
      [group, dim, parts](const at::Tensor& gradient) { return gather_from_group(group, gradient, dim, parts); });
}

at::Tensor gather_from_group(const ProcessGroup& group, const at::Tensor& x, int64_t dim, std::span<const int64_t> sizes) {
  dim = wrapped(x, dim);
  const Sizes parts = gathered_sizes(group, x, dim, sizes);
  return linear(
      x, [&](const at::Tensor& value) { return join_over(group, value, dim, parts); },
      [group, dim, parts](const at::Tensor& gradient) { return scatter_to_group(group, gradient, dim, parts); });
}

}  // namespace hyper_parallel::collectives::differentiable
