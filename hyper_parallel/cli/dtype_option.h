// SPDX-License-Identifier: Apache-2.0
// The --dtype option: names of tensor types as users write them.
#pragma once
#include <c10/core/ScalarType.h>

#include <map>
#include <string>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::cli {

inline at::ScalarType parse_dtype(const std::string& name) {
  static const std::map<std::string, at::ScalarType> known = {
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};
  const auto found = known.find(name);
  if (found == known.end()) throw ConfigError(str("--dtype: unknown type \"", name, "\" (allowed: float32, float64, bfloat16, float16)"));
  return found->second;
}

}  // namespace hyper_parallel::cli
