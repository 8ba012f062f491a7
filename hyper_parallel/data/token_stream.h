// SPDX-License-Identifier: Apache-2.0
// All tokens of a text, in order. With a tokenizer whose ids are bytes this is the text itself, without a copy.
//
//   std::shared_ptr<const TokenStream> tokens = load_tokens({.paths = {"corpus.txt"}}, "byte");
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hyper_parallel/data/text.h"
#include "hyper_parallel/data/tokenizer.h"

namespace hyper_parallel {

class TokenStream {
 public:
  TokenStream(Text text, const Tokenizer& tokenizer);
  int64_t size() const;
  void copy(int64_t begin, int64_t count, int64_t* destination) const;  // [begin, begin + count) must be inside

 private:
  Text text_;  // empty unless its bytes are the ids
  std::vector<int32_t> ids_;
};

// Ranks that are threads of one process share one copy: equal arguments give the same object as long as somebody holds it.
std::shared_ptr<const TokenStream> load_tokens(const TextOptions& options, const std::string& tokenizer);

}  // namespace hyper_parallel
