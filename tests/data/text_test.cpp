// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/data/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/data/token_stream.h"
#include "hyper_parallel/data/tokenizer.h"
#include "tests/data/support/gzip.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;

class TextSource : public testing::Test {
 protected:
  std::string error(const TextOptions& options) {
    return message_of<DataError>([&] { read_text(options); });
  }
  TemporaryFolder folder_;
};

TEST_F(TextSource, PatternsAreSortedAndFilesReadOnce) {
  folder_.write("b.txt", "B");
  folder_.write("a.txt", "A");
  folder_.write("c.md", "C");
  EXPECT_EQ(read_text({.paths = {folder_ / "*.txt"}}).bytes, "A\nB");
  EXPECT_EQ(read_text({.paths = {folder_ / "c.md", folder_ / "*"}, .separator = "--"}).bytes, "C--A--B");
  EXPECT_EQ(read_text({.paths = {folder_ / "[ab].txt", folder_ / "b.txt"}, .separator = ""}).bytes, "AB");
}

TEST_F(TextSource, MaxBytesCutsTheWhole) {
  const std::string one = folder_.write("1", "12345"), two = folder_.write("2", "67890");
  EXPECT_EQ(read_text({.paths = {one}, .max_bytes = 3}).bytes, "123");
  EXPECT_EQ(read_text({.paths = {one, two}, .max_bytes = 8}).bytes, "12345\n67");
  EXPECT_EQ(read_text({.paths = {one, two}, .max_bytes = 5}).bytes, "12345");
  EXPECT_EQ(read_text({.paths = {one, two}, .max_bytes = 6}).bytes, "12345\n");
  EXPECT_EQ(read_text({.paths = {one, two}, .max_bytes = 100}).bytes, "12345\n67890");
}

TEST_F(TextSource, UnpacksGzip) {
  std::string text;
  for (int line = 0; line < 200000; ++line) text += std::to_string(line) + "\n";
  const std::string packed = write_gzip(folder_ / "a.gz", text);
  EXPECT_EQ(read_text({.paths = {packed}}).bytes, text);
  EXPECT_EQ(read_text({.paths = {packed}, .max_bytes = 1'200'000}).bytes, text.substr(0, 1'200'000));
  const std::string head = folder_.write("head.txt", "head");
  EXPECT_EQ(read_text({.paths = {head, packed}}).bytes, "head\n" + text);
}

TEST_F(TextSource, UnpacksTheDictionary) {
  const std::string dictionary = "/usr/share/dictd/gcide.dict.dz";
  if (!std::filesystem::exists(dictionary)) GTEST_SKIP() << "the package dict-gcide is not installed";
  const Text text = read_text({.paths = {dictionary}, .max_bytes = 1 << 20});
  EXPECT_EQ(text.bytes.size(), size_t{1} << 20);
  EXPECT_THAT(std::string(text.bytes), HasSubstr("Collaborative International Dictionary of English"));
}

TEST_F(TextSource, SaysWhatIsMissing) {
  EXPECT_THAT(error({.paths = {folder_ / "none.txt"}}), HasSubstr("none.txt: no such file"));
  EXPECT_THAT(error({.paths = {folder_ / "*.none"}}), AllOf(HasSubstr("pattern "), HasSubstr("*.none matches no file")));
  EXPECT_THAT(error({.paths = {folder_ / ""}}), HasSubstr("not a file"));
  EXPECT_THAT(error({.paths = {folder_.write("empty", "")}}), AllOf(HasSubstr("no text: 1 files"), HasSubstr("with 0 bytes")));
  EXPECT_THAT(error({.paths = {folder_.write("plain.gz", "plain text")}}), HasSubstr("plain.gz: not a gzip file"));
  EXPECT_THAT(error({.paths = {}}), HasSubstr("no text: 0 files"));
}

TEST_F(TextSource, NoticesDamagedGzip) {
  std::string text;
  for (int line = 0; line < 20000; ++line) text += std::to_string(line * 7919) + "\n";
  const std::string packed = write_gzip(folder_ / "a.gz", text);
  std::ifstream file(packed, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(error({.paths = {folder_.write("cut.gz", bytes.substr(0, bytes.size() / 2))}}),
              HasSubstr("cut.gz: damaged or truncated gzip file"));
  EXPECT_THAT(error({.paths = {folder_.write("cut_trailer.gz", bytes.substr(0, bytes.size() - 4))}}),
              HasSubstr("cut_trailer.gz: damaged or truncated gzip file"));
  bytes[bytes.size() / 2] ^= 0x10;
  EXPECT_THAT(error({.paths = {folder_.write("flipped.gz", bytes)}}), HasSubstr("flipped.gz: damaged or truncated gzip file"));
}

TEST(ByteTokenizer, RoundTripsAnyBytes) {
  const auto tokenizer = make_tokenizer("byte");
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  const std::vector<int64_t> ids = tokenizer->encode(text);
  for (int64_t byte = 0; byte < 256; ++byte) EXPECT_EQ(ids[byte], byte);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_EQ(tokenizer->decode(std::vector<int64_t>{256, 83, 101, 97, 257, 258}), "Sea");
  EXPECT_EQ(tokenizer->vocab_size(), 259);
  EXPECT_EQ(tokenizer->bos(), 256);
  EXPECT_EQ(tokenizer->eos(), 257);
  EXPECT_EQ(tokenizer->pad(), 258);
  EXPECT_THAT(message_of<DataError>([&] { tokenizer->decode(std::vector<int64_t>{259}); }), HasSubstr("token 259 is outside"));
  EXPECT_THAT(message_of<DataError>([&] { tokenizer->decode(std::vector<int64_t>{-1}); }), HasSubstr("token -1 is outside"));
}

// Ids that are no bytes: the stream keeps them itself.
class PairTokenizer final : public Tokenizer {
 public:
  const std::string& name() const override { return name_; }
  int64_t vocab_size() const override { return 65536; }
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> ids;
    for (size_t i = 0; i + 1 < text.size(); i += 2) ids.push_back(static_cast<uint8_t>(text[i]) * 256 + static_cast<uint8_t>(text[i + 1]));
    return ids;
  }
  std::string decode(std::span<const int64_t>) const override { return ""; }

 private:
  std::string name_ = "pair";
};

TEST(TokenizerRegistry, ListsNames) {
  EXPECT_THAT(message_of<DataError>([] { make_tokenizer("bite"); }), AllOf(HasSubstr("unknown tokenizer \"bite\""), HasSubstr("byte")));
  register_tokenizer("pair", [] { return std::make_unique<PairTokenizer>(); });
  EXPECT_EQ(tokenizer_names(), (std::vector<std::string>{"byte", "pair"}));
  EXPECT_THROW(register_tokenizer("pair", nullptr), InternalError);
}

TEST(TokenStream, CopiesIdsAndShares) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a",
                                        "\xff"
                                        "abcde");
  const auto tokens = load_tokens({.paths = {file}}, "byte");
  std::vector<int64_t> ids(3);
  tokens->copy(0, 3, ids.data());
  EXPECT_EQ(ids, (std::vector<int64_t>{255, 'a', 'b'}));
  EXPECT_EQ(load_tokens({.paths = {file}}, "byte"), tokens) << "one copy for all threads";
  EXPECT_NE(load_tokens({.paths = {file}, .max_bytes = 4}, "byte"), tokens);
  EXPECT_THROW(tokens->copy(4, 3, ids.data()), InternalError);
  const TokenStream pairs(read_text({.paths = {file}}), PairTokenizer());
  EXPECT_EQ(pairs.size(), 3);
  pairs.copy(1, 2, ids.data());
  EXPECT_EQ(ids[0], 'b' * 256 + 'c');
}

}  // namespace
}  // namespace hyper_parallel
