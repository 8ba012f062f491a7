// SPDX-License-Identifier: Apache-2.0
// TensorBoard event files, scalars only.
//
//   EventFileWriter events("outputs/run");                 // outputs/run/events.out.tfevents.<seconds>.<host>.<pid>.<n>
//   events.scalar("train/loss", step, loss);
//   events.flush();
//
// Framing is TFRecord (length, masked CRC-32C, data, masked CRC-32C); the few protobuf fields are encoded by hand, because libtorch exports
// the symbols of an older protobuf that clash with the system's library.
#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace hyper_parallel {

// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78).
uint32_t crc32c(std::string_view bytes);

// One TFRecord frame around `data`.
std::string event_record(std::string_view data);

// The protobuf bytes of Event{wall_time, step, summary {value {tag, simple_value}}}.
std::string scalar_event(double wall_seconds, int64_t step, std::string_view tag, float value);

class EventFileWriter {
 public:
  // Creates the folder and a new file in it. RuntimeError names the path and the reason.
  explicit EventFileWriter(const std::filesystem::path& folder);
  void scalar(std::string_view tag, int64_t step, double value);
  void flush();  // RuntimeError if anything since the last flush was not written
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace hyper_parallel
