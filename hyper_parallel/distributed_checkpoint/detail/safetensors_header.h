// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file as text.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hyper_parallel/distributed_checkpoint/safetensors.h"

namespace hyper_parallel::detail {

struct SafetensorsHeader {
  std::map<std::string, SafetensorsInfo> tensors;
  std::map<std::string, std::string> metadata;
};

// `file`: named in errors. Checks all that can be checked without the data: types, sizes, no gaps, no overlap, no missing or extra bytes.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> content, const std::string& file);

struct SafetensorsItem {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
};
// Length, JSON and padding: everything before the data. Data offsets follow the order of `items`.
std::string make_safetensors_header(std::span<const SafetensorsItem> items, const std::map<std::string, std::string>& metadata);

}  // namespace hyper_parallel::detail
