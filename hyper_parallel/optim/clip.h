// SPDX-License-Identifier: Apache-2.0
// Clipping by the global norm, as torch.nn.utils.clip_grad_norm_ does it.
#pragma once

namespace hyper_parallel {

// The factor for every gradient: max_norm / (norm + 1e-6), at most 1. max_norm <= 0 or infinite: no clipping, 1. NaN if the norm is.
double clip_coefficient(double norm, double max_norm);

}  // namespace hyper_parallel
