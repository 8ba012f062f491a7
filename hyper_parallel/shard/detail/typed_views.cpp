// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>

#include "hyper_parallel/shard/detail/typed_kernels.h"

namespace hyper_parallel::detail {

bool register_typed_views(torch::Library& library, const OpInfo& info) {
  using namespace at::_ops;
  const auto any = [&]<class... Ops>(::std::tuple<Ops...>*) { return (register_typed<Ops>(library, info) || ...); };
  return any(static_cast<::std::tuple<detach, alias, view, _unsafe_view, t, transpose_int, permute, expand, unsqueeze, at::_ops::clone>*>(
      nullptr));
}

}  // namespace hyper_parallel::detail
