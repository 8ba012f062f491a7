// SPDX-License-Identifier: Apache-2.0
// The precompiled header of libraries whose files mostly use autograd Functions, the engine or the dispatcher.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#ifdef __clang__  // gcc would pay for them in every source
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include <nlohmann/json.hpp>
#endif

#include "hyper_parallel/pch.h"
