// SPDX-License-Identifier: Apache-2.0
// Gradients of linear and matmul on DTensors without merging leading dims.
#pragma once

namespace hyper_parallel::detail {

// Defines hyper_parallel::linear_weight_gradient, and the autograd kernels. Before the rows are registered.
void register_matmul_autograd();

}  // namespace hyper_parallel::detail
