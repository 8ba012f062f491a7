// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/nn/loss.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "hyper_parallel/nn/detail/dispatch.h"
#include "hyper_parallel/nn/detail/kernels.h"
#include "hyper_parallel/nn/detail/linear_loss.h"

namespace hyper_parallel {
namespace {

using detail::compute_type;
using detail::for_kernel;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kChunkElements = int64_t{16} << 20;  // logits held at a time; smaller chunks re-read the weight too often

// `logits` is overwritten: with the gradient, or with nothing useful.
double rows_loss(at::Tensor& logits, const int64_t* labels, bool gradient) {
  double loss = 0;
  detail::by_dtype(logits.scalar_type(), "cross_entropy", [&]<class T>(T) {
    loss = kernels::cross_entropy(logits.mutable_data_ptr<T>(), labels, logits.size(0), logits.size(1), kIgnoreLabel, gradient);
  });
  return loss;
}

at::Tensor scalar_like(const at::Tensor& like, double value) { return at::full({}, value, like.options().dtype(compute_type(like))); }

struct CrossEntropyFunction : Function<CrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& labels) {
    context->save_for_backward({logits, labels});
    at::Tensor work = at::empty(logits.sizes(), logits.options().dtype(compute_type(logits))).copy_(logits);
    return scalar_like(logits, rows_loss(work, labels.const_data_ptr<int64_t>(), false));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    at::Tensor work = at::empty(saved[0].sizes(), saved[0].options().dtype(compute_type(saved[0]))).copy_(saved[0]);
    rows_loss(work, saved[1].const_data_ptr<int64_t>(), true);
    return {work.mul_(grads[0]).to(saved[0].scalar_type()), at::Tensor()};
  }
};

struct HeadGradients {
  double loss = 0;
  at::Tensor hidden, weight;  // undefined if not wanted
};

// dweight += dlogits^T rows, in f32 for half types.
void add_weight_gradient(at::Tensor& dweight, const at::Tensor& dlogits, const at::Tensor& rows, bool first) {
  if (dweight.scalar_type() != rows.scalar_type()) {
    dweight.add_(at::mm(dlogits.t(), rows));
  } else if (first) {
    at::mm_out(dweight, dlogits.t(), rows);
  } else {
    dweight.addmm_(dlogits.t(), rows);
  }
}

// hidden weight^T. For a wide f32 weight oneDNN is up to half as fast again as the BLAS behind at::linear.
at::Tensor head_logits(const at::Tensor& hidden, const at::Tensor& weight) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                               c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!schema || hidden.scalar_type() != at::kFloat || hidden.size(0) < 16 || weight.size(0) == 0) return at::linear(hidden, weight);
  static const auto op = schema->typed<Signature>();
  return op.call(hidden, weight, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

HeadGradients head_loss(const at::Tensor& hidden, const at::Tensor& weight, int64_t chunk_columns, const detail::RowsLoss& rows_loss,
                        bool want_hidden, bool want_weight) {
  const int64_t rows = hidden.size(0);
  const int64_t chunk = std::clamp<int64_t>(kChunkElements / std::max<int64_t>(chunk_columns, 1), 64, std::max<int64_t>(rows, 64));
  const at::ScalarType type = compute_type(hidden);
  HeadGradients out;
  if (want_hidden) out.hidden = at::empty(hidden.sizes(), hidden.options());
  if (want_weight)
    out.weight = rows == 0 || type != hidden.scalar_type() ? at::zeros(weight.sizes(), weight.options().dtype(type))
                                                           : at::empty(weight.sizes(), weight.options());
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const at::Tensor part = hidden.narrow(0, begin, count);
    at::Tensor logits = for_kernel(head_logits(part, weight), type);
    out.loss += rows_loss(logits, begin, want_hidden || want_weight);
    const at::Tensor dlogits = logits.to(hidden.scalar_type());
    if (want_weight) add_weight_gradient(out.weight, dlogits, part, begin == 0);
    if (want_hidden) {
      at::Tensor dpart = out.hidden.narrow(0, begin, count);
      at::mm_out(dpart, dlogits, weight);
    }
  }
  return out;
}

// The kept gradient times the incoming scalar; in place unless the graph will be used again.
at::Tensor scaled(AutogradContext* context, const char* key, const at::Tensor& grad, at::ScalarType type) {
  const auto entry = context->saved_data.find(key);
  if (entry == context->saved_data.end()) return {};
  at::Tensor kept = entry->second.toTensor();
  if (torch::autograd::get_current_graph_task_keep_graph()) return kept.mul(grad).to(type);
  context->saved_data.erase(entry);
  return kept.mul_(grad).to(type);
}

struct LinearCrossEntropyFunction : Function<LinearCrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight, int64_t chunk_columns,
                            const detail::RowsLoss& rows_loss) {
    HeadGradients out = head_loss(hidden, weight, chunk_columns, rows_loss, hidden.requires_grad(), weight.requires_grad());
    if (out.hidden.defined()) context->saved_data["hidden"] = out.hidden;
    if (out.weight.defined()) context->saved_data["weight"] = out.weight;
    context->saved_data["type"] = static_cast<int64_t>(weight.scalar_type());
    return scalar_like(hidden, out.loss);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    HYPER_PARALLEL_CHECK(context->saved_data.size() > 1, "linear_cross_entropy: second backward through a graph that was not retained");
    return {scaled(context, "hidden", grads[0], type), scaled(context, "weight", grads[0], type), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

int64_t detail::checked_count(const at::Tensor& labels, int64_t vocab, int64_t ignore) {
  const int64_t* label = labels.const_data_ptr<int64_t>();
  int64_t count = 0;
  for (int64_t i = 0; i < labels.numel(); ++i) {
    if (label[i] == ignore) continue;
    if (label[i] < 0 || label[i] >= vocab)
      throw DataError(str("labels: element ", i, " is ", label[i], " (allowed: 0 to ", vocab - 1, ", or ", ignore, " to ignore)"));
    ++count;
  }
  return count;
}

at::Tensor detail::linear_loss(const at::Tensor& hidden, const at::Tensor& weight, int64_t chunk_columns, const RowsLoss& rows_loss) {
  if (needs_graph(hidden, weight)) return LinearCrossEntropyFunction::apply(hidden, weight, chunk_columns, rows_loss);
  return scalar_like(hidden, head_loss(hidden, weight, chunk_columns, rows_loss, false, false).loss);
}

int64_t count_labels(const at::Tensor& labels) {
  const at::Tensor flat = labels.contiguous();
  const int64_t* label = flat.const_data_ptr<int64_t>();
  return flat.numel() - std::count(label, label + flat.numel(), kIgnoreLabel);
}

LossSum cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor targets = labels.reshape({-1}).contiguous(), rows = logits.reshape({targets.numel(), logits.size(-1)});
  LossSum loss{.count = detail::checked_count(targets, logits.size(-1), kIgnoreLabel)};
  loss.sum = CrossEntropyFunction::apply(rows, targets);
  return loss;
}

LossSum linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) {
  const at::Tensor targets = labels.reshape({-1}).contiguous(), rows = hidden.reshape({targets.numel(), hidden.size(-1)});
  LossSum loss{.count = detail::checked_count(targets, weight.size(0), kIgnoreLabel)};
  loss.sum = detail::linear_loss(rows, weight, weight.size(0), [&](at::Tensor& logits, int64_t begin, bool gradient) {
    return rows_loss(logits, targets.const_data_ptr<int64_t>() + begin, gradient);
  });
  return loss;
}

}  // namespace hyper_parallel
