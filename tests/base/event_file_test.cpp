// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/base/event_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

std::string bytes_of(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) bytes.push_back(static_cast<char>(value));
  return bytes;
}

// Check values of RFC 3720, appendix B.4, and of the Rocksoft catalogue.
TEST(EventFile, Crc32cKnownAnswers) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(""), 0u);
}

// Golden bytes: protoc --encode of Event { wall_time: 1.5 step: 300 summary { value { tag: "loss" simple_value: 0.25 } } }.
TEST(EventFile, ScalarIsTheProtobufEncoding) {
  EXPECT_EQ(scalar_event(1.5, 300, "loss", 0.25f),
            bytes_of({0x09, 0,    0,    0,    0,   0,   0,   0xF8, 0x3F, 0x10, 0xAC, 0x02, 0x2A, 0x0D,
                      0x0A, 0x0B, 0x0A, 0x04, 'l', 'o', 's', 's',  0x15, 0,    0,    0x80, 0x3E}));
}

TEST(EventFile, FilesReadBackRecordByRecord) {
  std::string pattern = (std::filesystem::temp_directory_path() / "hyper_parallel_XXXXXX").string();
  const std::filesystem::path folder = mkdtemp(pattern.data());
  {
    EventFileWriter events(folder / "run");
    events.scalar("train/loss", 1, 2.5);
    events.scalar("train/loss", 2, 1.25);
    events.flush();
    std::ifstream file(events.path(), std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    const std::string text = content.str();
    std::vector<std::string> records;
    for (size_t at = 0; at < text.size();) {
      uint64_t length = 0;
      ASSERT_LE(at + 12, text.size());
      std::memcpy(&length, text.data() + at, 8);
      ASSERT_LE(at + 16 + length, text.size());
      records.push_back(text.substr(at + 12, length));
      EXPECT_EQ(text.substr(at, 16 + length), event_record(records.back()));
      at += 16 + length;
    }
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(records[0].substr(9), bytes_of({0x1A, 13}) + "brain.Event:2");
    EXPECT_EQ(records[2].substr(9), scalar_event(0, 2, "train/loss", 1.25f).substr(9));
  }
  EXPECT_THROW(EventFileWriter("/proc/none"), RuntimeError);
  std::filesystem::remove_all(folder);
}

// The frame of "abc": length, its masked checksum, data, masked checksum, as TensorFlow's record writer makes it.
TEST(EventFile, FrameMasksItsChecksums) {
  const std::string frame = event_record("123456789");
  ASSERT_EQ(frame.size(), 8u + 4 + 9 + 4);
  uint32_t masked = 0;
  std::memcpy(&masked, frame.data() + 21, 4);
  const uint32_t crc = 0xE3069283u;
  EXPECT_EQ(masked, ((crc >> 15) | (crc << 17)) + 0xA282EAD8u);
}

}  // namespace
}  // namespace hyper_parallel
