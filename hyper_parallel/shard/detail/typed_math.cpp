// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/zero_ops.h>

#include "hyper_parallel/shard/detail/typed_kernels.h"

namespace hyper_parallel::detail {

bool register_typed_math(torch::Library& library, const OpInfo& info) {
  using namespace at::_ops;
  const auto any = [&]<class... Ops>(::std::tuple<Ops...>*) { return (register_typed<Ops>(library, info) || ...); };
  return any(
      static_cast<
          ::std::tuple<add_Tensor, add__Tensor, sub_Tensor, mul_Tensor, mul__Tensor, div_Tensor, neg, pow_Tensor_Scalar, rsqrt, relu,
                       threshold_backward, silu, silu_backward, mm, bmm, addmm, sum, sum_dim_IntList, copy_, zero_, ones_like>*>(nullptr));
}

}  // namespace hyper_parallel::detail
