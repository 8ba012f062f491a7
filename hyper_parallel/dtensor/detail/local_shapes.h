// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other about the shapes of their shards. All of it is collective over the axes of the mesh, one after another, and
// throws LayoutError on all ranks or on none.
#pragma once
#include <ATen/core/Tensor.h>

#include "hyper_parallel/dtensor/spec.h"

namespace hyper_parallel::detail {

// The global shape of which each rank's `local` is its shard under `layout`.
Shape sizes_from_ranks(const at::Tensor& local, const Layout& layout);
// Whether each rank's `local` has the shape that `spec` gives to it, and all mean the same global shape.
void check_local_shapes(const at::Tensor& local, const Spec* spec);

}  // namespace hyper_parallel::detail
