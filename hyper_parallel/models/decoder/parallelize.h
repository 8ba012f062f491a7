// SPDX-License-Identifier: Apache-2.0
// How the dense decoder is spread over tensor-parallel ranks. Nothing in model.cpp knows of it.
#pragma once
#include "hyper_parallel/models/causal_lm.h"
#include "hyper_parallel/models/decoder/config.h"

namespace hyper_parallel {

ParallelPlan decoder_tensor_parallel_plan(const DecoderConfig& config, const TensorParallelOptions& options);

}  // namespace hyper_parallel
