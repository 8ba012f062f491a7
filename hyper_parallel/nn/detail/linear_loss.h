// SPDX-License-Identifier: Apache-2.0
// A loss of hidden weight^T by chunks of rows: the chunk's logits give the loss and, at once, both gradients, which backward only scales.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace hyper_parallel::detail {

// The loss of the rows [begin, begin + logits.size(0)); with `gradient`, logits become its gradient, else their content is lost.
using RowsLoss = std::function<double(at::Tensor& logits, int64_t begin, bool gradient)>;

// hidden: [rows, in]; weight: [columns, in]. `chunk_columns` decides the size of chunks; it may exceed weight's.
at::Tensor linear_loss(const at::Tensor& hidden, const at::Tensor& weight, int64_t chunk_columns, const RowsLoss& rows_loss);

// How many of int64 labels aren't `ignore`. DataError for one outside [0, vocab).
int64_t checked_count(const at::Tensor& labels, int64_t vocab, int64_t ignore);

}  // namespace hyper_parallel::detail
