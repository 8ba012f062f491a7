// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/nn/functional.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "hyper_parallel/nn/detail/dispatch.h"
#include "hyper_parallel/nn/detail/kernels.h"

namespace hyper_parallel {
namespace {

using detail::by_dtype;
using detail::compute_type;
using detail::for_kernel;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Normed {
  at::Tensor y, rstd;
};

Normed rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::ScalarType type = compute_type(x);
  const at::Tensor rows = for_kernel(x, type), scale = for_kernel(weight, type);
  const int64_t dim = rows.size(-1), count = dim == 0 ? 0 : rows.numel() / dim;
  Normed out{at::empty(rows.sizes(), rows.options()), at::empty({count}, rows.options())};
  by_dtype(type, "rms_norm", [&]<class T>(T) {
    kernels::rms_norm(rows.const_data_ptr<T>(), scale.const_data_ptr<T>(), out.y.mutable_data_ptr<T>(), out.rstd.mutable_data_ptr<T>(),
                      count, dim, eps);
  });
  out.y = out.y.to(x.scalar_type());
  return out;
}

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps) {
    Normed out = rms_norm_forward(x, weight, eps);
    context->save_for_backward({x, weight, out.rstd});
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::ScalarType type = saved[2].scalar_type();
    const at::Tensor x = for_kernel(saved[0], type), weight = for_kernel(saved[1], type), dy = for_kernel(grads[0], type);
    at::Tensor dx = at::empty(x.sizes(), x.options()), dweight = at::empty(weight.sizes(), weight.options());
    by_dtype(type, "rms_norm", [&]<class T>(T) {
      kernels::rms_norm_backward(x.const_data_ptr<T>(), weight.const_data_ptr<T>(), saved[2].const_data_ptr<T>(), dy.const_data_ptr<T>(),
                                 dx.mutable_data_ptr<T>(), dweight.mutable_data_ptr<T>(), saved[2].numel(), weight.numel());
    });
    return {dx.to(saved[0].scalar_type()), dweight.to(saved[1].scalar_type()), at::Tensor()};
  }
};

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, int direction) {
  const at::ScalarType type = compute_type(x);
  const at::Tensor in = for_kernel(x, type), c = for_kernel(cosine, type), s = for_kernel(sine, type);
  at::Tensor out = at::empty(in.sizes(), in.options());
  const kernels::RotaryShape shape{x.size(0), x.size(1), x.size(2), x.size(3), cosine.dim() == 3};
  by_dtype(type, "rotary", [&]<class T>(T) {
    kernels::rotary(in.const_data_ptr<T>(), c.const_data_ptr<T>(), s.const_data_ptr<T>(), out.mutable_data_ptr<T>(), shape, direction);
  });
  return out.to(x.scalar_type());
}

struct RotaryFunction : Function<RotaryFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
    context->save_for_backward({cosine, sine});
    return rotate(x, cosine, sine, 1);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    return {rotate(grads[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

at::Tensor swiglu_forward(const at::Tensor& gate, const at::Tensor& up) {
  const at::ScalarType type = compute_type(gate);
  const at::Tensor g = for_kernel(gate, type), u = for_kernel(up, type);
  at::Tensor out = at::empty(g.sizes(), g.options());
  by_dtype(type, "swiglu",
           [&]<class T>(T) { kernels::swiglu(g.const_data_ptr<T>(), u.const_data_ptr<T>(), out.mutable_data_ptr<T>(), g.numel()); });
  return out.to(gate.scalar_type());
}

struct SwigluFunction : Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return swiglu_forward(gate, up);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::ScalarType type = compute_type(saved[0]);
    const at::Tensor gate = for_kernel(saved[0], type), up = for_kernel(saved[1], type), dout = for_kernel(grads[0], type);
    at::Tensor dgate = at::empty(gate.sizes(), gate.options()), dup = at::empty(up.sizes(), up.options());
    by_dtype(type, "swiglu", [&]<class T>(T) {
      kernels::swiglu_backward(gate.const_data_ptr<T>(), up.const_data_ptr<T>(), dout.const_data_ptr<T>(), dgate.mutable_data_ptr<T>(),
                               dup.mutable_data_ptr<T>(), gate.numel());
    });
    return {dgate.to(saved[0].scalar_type()), dup.to(saved[1].scalar_type())};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  HYPER_PARALLEL_CHECK(gate.sizes() == up.sizes(), "swiglu: gate ", gate.sizes(), ", up ", up.sizes());
  return detail::needs_graph(gate, up) ? SwigluFunction::apply(gate, up) : swiglu_forward(gate, up);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  HYPER_PARALLEL_CHECK(weight.dim() == 1 && x.dim() > 0 && x.size(-1) == weight.size(0), "rms_norm: x ", x.sizes(), ", weight ",
                       weight.sizes());
  return detail::needs_graph(x, weight) ? RmsNormFunction::apply(x, weight, eps) : rms_norm_forward(x, weight, eps).y;
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  HYPER_PARALLEL_CHECK(x.dim() == 4 && x.size(3) % 2 == 0 && cosine.sizes() == sine.sizes() && cosine.size(-1) == x.size(3) / 2 &&
                           cosine.size(-2) == x.size(1) && (cosine.dim() == 2 || cosine.size(0) == x.size(0)),
                       "rotary: x ", x.sizes(), ", tables ", cosine.sizes(), " and ", sine.sizes());
  return detail::needs_graph(x) ? RotaryFunction::apply(x, cosine, sine) : rotate(x, cosine, sine, 1);
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, std::optional<double> scale) {
  HYPER_PARALLEL_CHECK(query.dim() == 4 && key.sizes() == value.sizes() && query.size(1) == key.size(1) &&
                           (query.size(2) == 0 || (key.size(2) > 0 && query.size(2) % key.size(2) == 0)),
                       "attention: query ", query.sizes(), ", key ", key.sizes(), ", value ", value.sizes());
  if (query.size(2) == 0) return query.reshape({query.size(0), query.size(1), 0});
  const at::Tensor out = at::scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), {}, 0.0,
                                                          /*is_causal=*/true, scale, /*enable_gqa=*/query.size(2) != key.size(2));
  return out.transpose(1, 2).reshape({query.size(0), query.size(1), query.size(2) * query.size(3)});
}

at::Tensor cached_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& lengths) {
  HYPER_PARALLEL_CHECK(query.dim() == 4 && query.size(1) == 1 && keys.is_contiguous() && values.is_contiguous() && lengths.is_contiguous(),
                       "cached_attention: query ", query.sizes(), ", keys ", keys.sizes());
  const at::ScalarType type = compute_type(query);
  const at::Tensor q = for_kernel(query, type), k = for_kernel(keys, type), v = for_kernel(values, type);
  if (q.size(2) == 0) return query.reshape({q.size(0), 1, 0});
  const kernels::DecodeShape shape{q.size(0), q.size(2), k.size(2), q.size(3), k.size(1)};
  at::Tensor out = at::empty({shape.batch, 1, shape.heads * shape.dim}, q.options());
  by_dtype(type, "cached_attention", [&]<class T>(T) {
    kernels::decode_attention(q.const_data_ptr<T>(), k.const_data_ptr<T>(), v.const_data_ptr<T>(), lengths.const_data_ptr<int64_t>(),
                              out.mutable_data_ptr<T>(), shape, 1 / std::sqrt(static_cast<double>(shape.dim)));
  });
  return out.to(query.scalar_type());
}

}  // namespace hyper_parallel
