// SPDX-License-Identifier: Apache-2.0
// What one step of a redistribution does to the local tensor.
#pragma once
#include <ATen/core/Tensor.h>

#include "hyper_parallel/dtensor/redistribute.h"

namespace hyper_parallel::detail {

at::Tensor run_step(const RedistributeStep& step, const Spec* before, const Spec* after, const at::Tensor& local);

}  // namespace hyper_parallel::detail
