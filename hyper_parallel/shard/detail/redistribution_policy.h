// SPDX-License-Identifier: Apache-2.0
// Applies ImplicitRedistribution to a call that is about to move its inputs.
#pragma once
#include "hyper_parallel/shard/detail/dispatch.h"

namespace hyper_parallel::detail {

// Throws LayoutError under kError.
void check_redistribution(const OpInfo& info, const Propagation& propagation);

}  // namespace hyper_parallel::detail
