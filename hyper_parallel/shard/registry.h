// SPDX-License-Identifier: Apache-2.0
// The ops that DTensors know, for `hyper-parallel info`.
#pragma once
#include <string>
#include <vector>

namespace hyper_parallel {

// Names of all ops that have a rule ("aten::mm", "aten::add.Tensor"), sorted.
std::vector<std::string> registered_ops();

}  // namespace hyper_parallel
