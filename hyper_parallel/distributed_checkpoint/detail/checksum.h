// SPDX-License-Identifier: Apache-2.0
// Checksums of checkpoint files and pieces, and how metadata.json writes them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hyper_parallel::detail {

uint64_t checksum(const void* data, size_t num_bytes);  // XXH3, 64 bits
inline uint64_t checksum(std::string_view text) { return checksum(text.data(), text.size()); }
inline uint64_t checksum(std::span<const std::byte> bytes) { return checksum(bytes.data(), bytes.size()); }
std::string checksum_text(uint64_t value);  // 16 hex digits

class OutputFile;
// Writes and hashes in blocks that stay in the cache between the two.
uint64_t write_with_checksum(OutputFile& file, const void* data, size_t num_bytes);

}  // namespace hyper_parallel::detail
