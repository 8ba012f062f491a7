// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "hyper_parallel/base/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;

NamedTensors sample_tensors() {
  return {{"scalar", at::arange(1, 2, at::kDouble).squeeze()},
          {"half", at::randn({3, 5}).to(at::kHalf)},
          {"empty", at::zeros({0, 4})},
          {"flags", at::randint(2, {7}).to(at::kBool)},
          {"brain", at::randn({2, 3, 4}).to(at::kBFloat16)},
          {"ids", at::randint(1000, {6}, at::kLong)},
          {"transposed", at::randn({4, 6}).t()}};
}

// A file made by hand: length, header text, data.
std::string raw_file(const std::string& header, const std::string& data) {
  std::string text(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(text.data(), &length, 8);
  return text + header + data;
}

class Safetensors : public testing::Test {
 protected:
  std::string open_error(const std::string& content) {
    write_text(folder_ / "bad.safetensors", content);
    return message_of<CheckpointError>([&] { SafetensorsFile file(folder_ / "bad.safetensors"); });
  }
  TemporaryFolder folder_;
};

TEST_F(Safetensors, ReadsBackWhatWasWritten) {
  const NamedTensors tensors = sample_tensors();
  write_safetensors(folder_ / "a.safetensors", tensors, {{"format", "pt"}});
  const SafetensorsFile file(folder_ / "a.safetensors");
  EXPECT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor read = file.read(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(at::equal(read, tensor)) << name;
    EXPECT_EQ(file.info(name).begin_bytes % static_cast<int64_t>(tensor.itemsize()), 0) << name;
  }
}

// Written out by hand from the format's description.
TEST_F(Safetensors, BytesAreThoseOfTheFormat) {
  write_safetensors(folder_ / "a.safetensors", {{"x", at::arange(1, 3, at::kInt)}});
  const std::string header = R"({"x":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read_text(folder_ / "a.safetensors"), raw_file(padded, std::string("\1\0\0\0\2\0\0\0", 8)));
}

TEST_F(Safetensors, ReadsBoxesAndConverts) {
  const at::Tensor whole = at::randn({5, 4, 6});
  write_safetensors(folder_ / "a.safetensors", {{"w", whole}});
  const SafetensorsFile file(folder_ / "a.safetensors");
  for (const Box& box : {Box{{0, 0, 0}, {5, 4, 6}}, Box{{1, 0, 0}, {3, 4, 6}}, Box{{2, 1, 0}, {1, 3, 6}}, Box{{0, 1, 2}, {5, 2, 3}},
                         Box{{4, 3, 5}, {1, 1, 1}}, Box{{2, 2, 2}, {0, 1, 1}}}) {
    const at::Tensor expected =
        whole.narrow(0, box.offsets[0], box.sizes[0]).narrow(1, box.offsets[1], box.sizes[1]).narrow(2, box.offsets[2], box.sizes[2]);
    at::Tensor read = at::empty(box.sizes), wide = at::empty(box.sizes, at::kDouble);
    file.read_box("w", box, read);
    EXPECT_TRUE(at::equal(read, expected)) << bracketed(box.offsets);
    file.read_box("w", box, wide);
    EXPECT_TRUE(at::equal(wide, expected.to(at::kDouble))) << bracketed(box.offsets);
    at::Tensor larger = at::zeros({6, 6, 8});
    file.read_box_into("w", box, larger, larger.sizes(), std::vector<int64_t>{1, 2, 2});
    at::Tensor reference = at::zeros({6, 6, 8});
    reference.narrow(0, 1, box.sizes[0]).narrow(1, 2, box.sizes[1]).narrow(2, 2, box.sizes[2]).copy_(expected);
    EXPECT_TRUE(at::equal(larger, reference)) << bracketed(box.offsets);
  }
  at::Tensor read = at::empty({1});
  EXPECT_THAT(message_of<CheckpointError>([&] {
                file.read_box("w", {{5, 0, 0}, {1, 1, 1}}, read);
              }),
              HasSubstr("is not inside shape [5, 4, 6]"));
}

TEST_F(Safetensors, LargeTensorsGoThroughTheReadPath) {
  const at::Tensor whole = at::randn({400, 300});  // 480 kB, over the limit of small reads
  write_safetensors(folder_ / "a.safetensors", {{"w", whole}});
  const SafetensorsFile file(folder_ / "a.safetensors");
  EXPECT_TRUE(at::equal(file.read("w"), whole));
  at::Tensor rows = at::empty({398, 300});
  file.read_box("w", {{1, 0}, {398, 300}}, rows);
  EXPECT_TRUE(at::equal(rows, whole.narrow(0, 1, 398)));
}

TEST_F(Safetensors, NamesNearTensors) {
  write_safetensors(folder_ / "a.safetensors", {{"model.norm.weight", at::zeros({1})}});
  const SafetensorsFile file(folder_ / "a.safetensors");
  EXPECT_THAT(message_of<CheckpointError>([&] { file.read("model.norm.wieght"); }), HasSubstr("did you mean \"model.norm.weight\"?"));
  EXPECT_THAT(message_of<CheckpointError>([&] { SafetensorsFile missing(folder_ / "b.safetensors"); }), HasSubstr("No such file"));
  EXPECT_THAT(message_of<CheckpointError>([&] { SafetensorsFile missing(folder_.path()); }), HasSubstr("truncated"));
}

TEST_F(Safetensors, RejectsDamagedHeaders) {
  EXPECT_THAT(open_error(""), HasSubstr("found 0"));
  EXPECT_THAT(open_error("abc"), AllOf(HasSubstr("bad.safetensors: truncated"), HasSubstr("found 3")));
  EXPECT_THAT(open_error(std::string(8, '\xff')), HasSubstr("damaged header, or not a safetensors file"));
  EXPECT_THAT(open_error(raw_file("{}", "").substr(0, 9)), HasSubstr("truncated: header ends at byte 10, found 9 bytes"));
  EXPECT_THAT(open_error(raw_file("{\"x\":", "")), HasSubstr("damaged header"));
  EXPECT_THAT(open_error(raw_file("[1]", "")), HasSubstr("not a JSON object"));
  const auto with = [&](const std::string& entry, const std::string& data) { return open_error(raw_file("{\"x\":" + entry + "}", data)); };
  const std::string eight(8, 'd');
  EXPECT_EQ(with(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", eight), "no error");
  EXPECT_THAT(with(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", "1234567"),
              AllOf(HasSubstr("truncated: expected"), HasSubstr("found")));
  EXPECT_THAT(with(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", eight + "x"), HasSubstr("1 bytes too long"));
  EXPECT_THAT(with(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", eight),
              HasSubstr("tensor \"x\": F32 [3] takes 12 bytes, the header gives 8"));
  EXPECT_THAT(with(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", eight), HasSubstr("unknown dtype \"F33\" (allowed: "));
  EXPECT_THAT(with(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", eight), HasSubstr("shape must be a list of integers >= 0"));
  EXPECT_THAT(with(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", eight), HasSubstr("data_offsets must be two integers"));
  EXPECT_THAT(with(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", eight), HasSubstr("the header gives -8"));
  EXPECT_THAT(with(R"({"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]})", eight), HasSubstr("too large"));
  EXPECT_THAT(with(R"({"dtype":"U8","shape":[4],"data_offsets":[4,8]})", eight), HasSubstr("begins at byte"));
  EXPECT_THAT(with(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]},"x":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})", eight),
              HasSubstr("tensor \"x\" occurs twice"));
  EXPECT_THAT(with(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8]},"y":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})", eight),
              HasSubstr("tensor \"y\" begins at byte"));
  EXPECT_THAT(with("3", eight), HasSubstr("shape must be a list"));
  EXPECT_THAT(open_error(raw_file(R"({"__metadata__":{"a":1}})", "")), HasSubstr("__metadata__ must map strings to strings"));
}

TEST_F(Safetensors, WritesFoldersWithAnIndex) {
  const NamedTensors tensors{{"a", at::randn({10})}, {"b", at::randn({10})}, {"c", at::randn({100})}, {"d", at::randn({1})}};
  write_safetensors_folder(folder_.path(), tensors, 100);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "model-00001-of-00003.safetensors"));
  {
    const SafetensorsFolder folder(folder_.path());
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"a", "b", "c", "d"}));
    for (const auto& [name, tensor] : tensors) EXPECT_TRUE(at::equal(folder.read(name), tensor)) << name;
    at::Tensor part = at::empty({20});
    folder.read_box("c", {{70}, {20}}, part);
    EXPECT_TRUE(at::equal(part, tensors[2].second.narrow(0, 70, 20)));
    EXPECT_THAT(message_of<CheckpointError>([&] { folder.read("e"); }), HasSubstr("no tensor \"e\" among 4"));
  }
  write_safetensors_folder(folder_.path(), {tensors[0]});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "the earlier export's files are gone";
  EXPECT_EQ(SafetensorsFolder(folder_.path()).names(), (std::vector<std::string>{"a"}));
}

TEST_F(Safetensors, RejectsBrokenFolders) {
  EXPECT_THAT(message_of<CheckpointError>([&] { SafetensorsFolder folder(folder_.path()); }),
              HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  write_text(folder_ / "model.safetensors.index.json", "{");
  EXPECT_THAT(message_of<CheckpointError>([&] { SafetensorsFolder folder(folder_.path()); }), HasSubstr("index.json: damaged"));
  write_text(folder_ / "model.safetensors.index.json", R"({"weight_map":{"a":"part.safetensors"}})");
  EXPECT_THAT(message_of<CheckpointError>([&] { SafetensorsFolder folder(folder_.path()); }),
              HasSubstr("part.safetensors: cannot be opened"));
  write_safetensors(folder_ / "part.safetensors", {{"b", at::zeros({1})}});
  EXPECT_THAT(message_of<CheckpointError>([&] { SafetensorsFolder folder(folder_.path()); }), HasSubstr("no tensor \"a\" among 1"));
}

TEST_F(Safetensors, RejectsWhatTheFormatLacks) {
  EXPECT_THAT(message_of<CheckpointError>([&] {
                write_safetensors(folder_ / "a", {{"x", at::zeros({1}, at::kComplexDouble)}});
              }),
              HasSubstr("dtype ComplexDouble has no safetensors name"));
  EXPECT_THAT(message_of<CheckpointError>([&] {
                write_safetensors(folder_ / "a", {{"x", at::zeros({1})}, {"x", at::zeros({1})}});
              }),
              HasSubstr("\"x\" is given twice"));
  EXPECT_THAT(message_of<RuntimeError>([&] {
                write_safetensors(folder_ / "none/a", {{"x", at::zeros({1})}});
              }),
              AllOf(HasSubstr("cannot create"), HasSubstr("none/a"), HasSubstr("No such file")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// A folder of that name is in the way of the last step.
TEST_F(Safetensors, FailedRenamesLeaveNothing) {
  namespace fs = std::filesystem;
  const auto expect_nothing_but = [&](const fs::path& obstacle) {
    EXPECT_TRUE(fs::exists(obstacle / "inside"));
    EXPECT_EQ(std::distance(fs::directory_iterator(obstacle.parent_path()), {}), 1);
  };
  const NamedTensors tensors{{"a", at::zeros({10})}, {"b", at::zeros({10})}};
  const fs::path file = folder_ / "one/a.safetensors", part = folder_ / "two/model-00002-of-00002.safetensors";
  fs::create_directories(file / "inside");
  EXPECT_THAT(message_of<RuntimeError>([&] { write_safetensors(file, tensors); }),
              AllOf(HasSubstr("cannot rename "), HasSubstr(file.string() + ": ")));
  expect_nothing_but(file);
  fs::create_directories(part / "inside");
  EXPECT_THAT(message_of<RuntimeError>([&] { write_safetensors_folder(folder_ / "two", tensors, 40); }), HasSubstr(part.string() + ": "));
  expect_nothing_but(part);
  EXPECT_THAT(message_of<CheckpointError>([&] {
                write_safetensors_folder(folder_ / "three", {tensors[0], tensors[0]}, 40);
              }),
              HasSubstr("\"a\" is given twice"));
  EXPECT_FALSE(fs::exists(folder_ / "three"));
}

// The reference implementation reads ours and writes what we read; skipped where the project's environment lacks it.
TEST_F(Safetensors, AgreesWithThePythonPackage) {
  const char* source = std::getenv("HYPER_PARALLEL_SOURCE");
  const std::filesystem::path python = std::filesystem::path(source ? source : ".") / ".venv/bin/python";
  if (!std::filesystem::exists(python)) GTEST_SKIP() << "no " << python;
  const NamedTensors tensors = sample_tensors();
  write_safetensors(folder_ / "ours.safetensors", tensors, {{"format", "pt"}, {"note", "quotes \" and \xc3\xa9"}});
  write_text(folder_ / "roundtrip.py", R"(
import sys
from safetensors import safe_open
from safetensors.torch import save_file
folder = sys.argv[1]
with safe_open(folder + '/ours.safetensors', 'pt') as file:
    tensors = {name: file.get_tensor(name) for name in file.keys()}
    save_file(tensors, folder + '/theirs.safetensors', metadata=file.metadata())
)");
  ASSERT_EQ(std::system((python.string() + " " + (folder_ / "roundtrip.py").string() + " " + folder_.path().string()).c_str()), 0);
  const SafetensorsFile theirs(folder_ / "theirs.safetensors");
  EXPECT_EQ(theirs.metadata().at("note"), "quotes \" and \xc3\xa9");
  EXPECT_EQ(theirs.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(theirs.info(name).dtype, tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(theirs.read(name), tensor)) << name;
  }
}

}  // namespace
}  // namespace hyper_parallel
