// SPDX-License-Identifier: Apache-2.0
// matmul and linear as ops of their own. libtorch would decompose them into views and mm, and a view can't merge sharded leading dims; here
// leading dims stay as they are, forward and backward.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "hyper_parallel/shard/detail/matmul_autograd.h"
#include "hyper_parallel/shard/op_rule.h"

namespace hyper_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// ---- the rule of matmul: leading dims broadcast, a 1-d operand lacks its row or column

void matmul_rule(const OpCall& call, Factorization& f) {
  const Shape &left = call.tensors[0].sizes, &right = call.tensors[1].sizes;
  if (left.empty() || right.empty()) call.fail("matmul of a scalar");
  const size_t left_batch = left.size() > 2 ? left.size() - 2 : 0, right_batch = right.size() > 2 ? right.size() - 2 : 0;
  const size_t batch = std::max(left_batch, right_batch);
  std::vector<int> left_factors, right_factors, output;
  for (size_t index = 0; index < batch; ++index) {
    const int64_t a = index + left_batch >= batch ? left[index + left_batch - batch] : 1,
                  b = index + right_batch >= batch ? right[index + right_batch - batch] : 1;
    const int factor = f.add_factor(std::max(a, b));
    if (index + left_batch >= batch) left_factors.push_back(a == f.factors[factor].size ? factor : Factorization::kNone);
    if (index + right_batch >= batch) right_factors.push_back(b == f.factors[factor].size ? factor : Factorization::kNone);
    output.push_back(factor);
  }
  const int k = f.add_factor(left.back());
  f.factors[k].reduce = ReduceOp::kSum;
  if (left.size() > 1) {
    left_factors.push_back(f.add_factor(left[left.size() - 2]));
    output.push_back(left_factors.back());
  }
  left_factors.push_back(k);
  right_factors.push_back(k);
  if (right.size() > 1) {
    right_factors.push_back(f.add_factor(right.back()));
    output.push_back(right_factors.back());
  }
  f.inputs = {left_factors, right_factors};
  f.outputs = {output};
  f.terms = {{0, 1}};
}
HYPER_PARALLEL_OP_RULE("matmul", matmul_rule);

// ---- backward

at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& input) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hyper_parallel::linear_weight_gradient", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(gradient, input);
}

// Sums the leading dims that broadcasting added to a gradient.
at::Tensor sum_to(const at::Tensor& gradient, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> added, kept;
  const int64_t extra = gradient.dim() - int64_t(sizes.size());
  for (int64_t dim = 0; dim < extra; ++dim) added.push_back(dim);
  for (int64_t dim = extra; dim < gradient.dim(); ++dim)
    if (sizes[dim - extra] == 1 && gradient.size(dim) != 1) kept.push_back(dim);
  at::Tensor result = kept.empty() ? gradient : at::sum(gradient, kept, true);
  return added.empty() ? result : at::sum(result, added, false);
}

struct Linear : Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    context->save_for_backward({input, weight});
    context->saved_data["bias"] = bias.has_value();
    at::AutoDispatchBelowADInplaceOrView below;
    return at::linear(input, weight, bias);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    std::vector<int64_t> leading;
    for (int64_t dim = 0; dim + 1 < gradient.dim(); ++dim) leading.push_back(dim);
    return {context->needs_input_grad(0) ? at::matmul(gradient, saved[1]) : at::Tensor(),
            context->needs_input_grad(1) ? weight_gradient(gradient, saved[0]) : at::Tensor(),
            context->saved_data["bias"].toBool() && context->needs_input_grad(2)
                ? (leading.empty() ? gradient : at::sum(gradient, leading, false))
                : at::Tensor()};
  }
};

struct MatMul : Function<MatMul> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& left, const at::Tensor& right) {
    context->save_for_backward({left, right});
    at::AutoDispatchBelowADInplaceOrView below;
    return at::matmul(left, right);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &gradient = gradients[0], &left = saved[0], &right = saved[1];
    if (!gradient.defined()) return {at::Tensor(), at::Tensor()};
    at::Tensor of_left, of_right;
    if (context->needs_input_grad(0)) of_left = sum_to(at::matmul(gradient, right.transpose(-2, -1)), left.sizes().vec());
    if (context->needs_input_grad(1))
      of_right =
          right.dim() == 2 ? weight_gradient(left, gradient) : sum_to(at::matmul(left.transpose(-2, -1), gradient), right.sizes().vec());
    return {of_left, of_right};
  }
};

bool records(const at::Tensor& a, const at::Tensor& b) { return at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad()); }

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const std::optional<at::Tensor> given = bias && bias->defined() ? bias : std::nullopt;
  if (records(input, weight) || (given && records(*given, weight))) return Linear::apply(input, weight, given);
  at::AutoDispatchBelowADInplaceOrView below;
  return at::linear(input, weight, given);
}

at::Tensor sharded_matmul(const at::Tensor& left, const at::Tensor& right) {
  if (!records(left, right)) {
    at::AutoDispatchBelowADInplaceOrView below;
    return at::matmul(left, right);
  }
  if (left.dim() == 1) return sharded_matmul(left.unsqueeze(0), right).squeeze(right.dim() == 1 ? 0 : -2);
  if (right.dim() == 1) return sharded_matmul(left, right.unsqueeze(1)).squeeze(-1);
  if (left.dim() == 2 && right.dim() == 2) return at::mm(left, right);
  return MatMul::apply(left, right);
}

at::Tensor local_weight_gradient(const at::Tensor& gradient, const at::Tensor& input) {
  return at::mm(gradient.flatten(0, -2).t(), input.flatten(0, -2));
}

}  // namespace

namespace detail {

void register_matmul_autograd() {
  auto& own = *new torch::Library(torch::Library::DEF, "hyper_parallel", std::nullopt, __FILE__, __LINE__);
  own.def("linear_weight_gradient(Tensor gradient, Tensor input) -> Tensor");
  own.impl("linear_weight_gradient", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &local_weight_gradient));
  auto& library = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse2, __FILE__, __LINE__);
  library.impl("linear", &linear);
  library.impl("matmul", &sharded_matmul);
}

}  // namespace detail
}  // namespace hyper_parallel
