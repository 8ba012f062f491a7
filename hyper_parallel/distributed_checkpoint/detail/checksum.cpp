// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/detail/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "hyper_parallel/distributed_checkpoint/detail/files.h"

namespace hyper_parallel::detail {

uint64_t checksum(const void* data, size_t num_bytes) { return XXH3_64bits(data, num_bytes); }

std::string checksum_text(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

uint64_t write_with_checksum(OutputFile& file, const void* data, size_t num_bytes) {
  constexpr size_t kBlockBytes = size_t{1} << 20;
  if (num_bytes <= kBlockBytes) {
    file.write(data, num_bytes);
    return checksum(data, num_bytes);
  }
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  const char* next = static_cast<const char*>(data);
  for (const char* const end = next + num_bytes; next < end;) {
    const size_t block = std::min<size_t>(kBlockBytes, end - next);
    XXH3_64bits_update(state.get(), next, block);
    file.write(next, block);
    next += block;
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace hyper_parallel::detail
