// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/data/token_stream.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {

TokenStream::TokenStream(Text text, const Tokenizer& tokenizer) {
  if (tokenizer.ids_are_bytes()) {
    text_ = std::move(text);
    return;
  }
  const std::vector<int64_t> ids = tokenizer.encode(text.bytes);
  ids_.assign(ids.begin(), ids.end());
}

int64_t TokenStream::size() const { return static_cast<int64_t>(std::max(text_.bytes.size(), ids_.size())); }

void TokenStream::copy(int64_t begin, int64_t count, int64_t* destination) const {
  HYPER_PARALLEL_CHECK(begin >= 0 && count >= 0 && begin + count <= size(), begin, " ", count, " ", size());
  if (!ids_.empty()) {
    std::copy_n(ids_.begin() + begin, count, destination);
    return;
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(text_.bytes.data()) + begin;
  std::copy_n(bytes, count, destination);
}

std::shared_ptr<const TokenStream> load_tokens(const TextOptions& options, const std::string& tokenizer) {
  static std::mutex mutex;  // held while reading: the other ranks wait for the copy that they will share
  static std::map<std::string, std::weak_ptr<const TokenStream>> loaded;
  const std::string key =
      str(tokenizer, "\n", options.max_bytes.value_or(-1), "\n", options.separator.size(), options.separator, options.paths);
  const std::lock_guard lock(mutex);
  std::shared_ptr<const TokenStream> tokens = loaded[key].lock();
  if (tokens == nullptr) {
    const auto made = make_tokenizer(tokenizer);
    tokens = std::make_shared<TokenStream>(read_text(options), *made);
    loaded[key] = tokens;
  }
  return tokens;
}

}  // namespace hyper_parallel
