// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/event_file.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats below are little-endian");

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

template <class T>
void append_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Protobuf wire types.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void append_tag(std::string& out, uint32_t field, WireType type) { append_varint(out, field << 3 | type); }

void append_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  append_tag(out, field, kBytes);
  append_varint(out, bytes.size());
  out.append(bytes);
}

double wall_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string version_event() {
  std::string event;
  append_tag(event, 1, kFixed64);
  append_raw(event, wall_seconds());
  append_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string file_name() {
  static std::atomic<int> counter{0};
  char host[65] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return str("events.out.tfevents.", static_cast<int64_t>(wall_seconds()), ".", host, ".", getpid(), ".", counter++);
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~crc;
}

std::string event_record(std::string_view data) {
  std::string record;
  append_raw(record, static_cast<uint64_t>(data.size()));
  append_raw(record, masked_crc(record));
  record.append(data);
  append_raw(record, masked_crc(data));
  return record;
}

std::string scalar_event(double seconds, int64_t step, std::string_view tag, float scalar) {
  std::string value;
  append_bytes(value, 1, tag);
  append_tag(value, 2, kFixed32);
  append_raw(value, scalar);
  std::string summary;
  append_bytes(summary, 1, value);
  std::string event;
  append_tag(event, 1, kFixed64);
  append_raw(event, seconds);
  append_tag(event, 2, kVarint);
  append_varint(event, static_cast<uint64_t>(step));
  append_bytes(event, 5, summary);
  return event;
}

EventFileWriter::EventFileWriter(const std::filesystem::path& folder) : path_(folder / file_name()) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  file_.open(path_, std::ios::binary | std::ios::trunc);
  if (error || !file_) throw RuntimeError(str("cannot create ", path_.string(), ": ", error ? error.message() : std::strerror(errno)));
  file_ << event_record(version_event());
  flush();
}

void EventFileWriter::scalar(std::string_view tag, int64_t step, double value) {
  file_ << event_record(scalar_event(wall_seconds(), step, tag, static_cast<float>(value)));
}

void EventFileWriter::flush() {
  file_.flush();
  if (!file_) throw RuntimeError(str("cannot write ", path_.string(), ": ", std::strerror(errno)));
}

}  // namespace hyper_parallel
