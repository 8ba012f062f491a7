// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/data/tokenizer.h"

#include <map>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  const std::string& name() const override {
    static const std::string name = "byte";
    return name;
  }
  int64_t vocab_size() const override { return 259; }
  std::optional<int64_t> bos() const override { return 256; }
  std::optional<int64_t> eos() const override { return 257; }
  std::optional<int64_t> pad() const override { return 258; }
  bool ids_are_bytes() const override { return true; }

  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<uint8_t>(text[i]);
    return ids;
  }

  std::string decode(std::span<const int64_t> ids) const override {
    std::string text;
    for (const int64_t id : ids) {
      if (id < 0 || id >= vocab_size()) throw DataError(str("token ", id, " is outside the byte tokenizer's ids 0 to ", vocab_size() - 1));
      if (id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }
};

using Maker = std::function<std::unique_ptr<Tokenizer>()>;

std::map<std::string, Maker>& registry() {
  static std::map<std::string, Maker> makers{{"byte", [] { return std::make_unique<ByteTokenizer>(); }}};
  return makers;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  const auto found = registry().find(name);
  if (found == registry().end()) throw DataError(str("unknown tokenizer \"", name, "\" (allowed: ", tokenizer_names(), ")"));
  return found->second();
}

std::vector<std::string> tokenizer_names() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : registry()) names.push_back(name);
  return names;
}

void register_tokenizer(const std::string& name, Maker make) {
  const bool is_new = registry().emplace(name, std::move(make)).second;
  HYPER_PARALLEL_CHECK(is_new, "tokenizer \"", name, "\" is registered twice");
}

}  // namespace hyper_parallel
