// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back.
//
//   auto tokenizer = make_tokenizer("byte");
//   std::vector<int64_t> ids = tokenizer->encode("Sea");       // 83, 101, 97
//   std::string text = tokenizer->decode(ids);
//
// "byte": ids 0-255 are the bytes of the text, then bos = 256, eos = 257, pad = 258; vocab_size 259. Any text round-trips.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hyper_parallel {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual const std::string& name() const = 0;
  virtual int64_t vocab_size() const = 0;                                // special tokens included
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;  // adds no special tokens
  // Special tokens give no text. DataError for an id outside [0, vocab_size).
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  virtual std::optional<int64_t> bos() const { return std::nullopt; }
  virtual std::optional<int64_t> eos() const { return std::nullopt; }
  virtual std::optional<int64_t> pad() const { return std::nullopt; }
  // Whether encode() maps each byte to the id of its value, so that text needs no second copy as ids.
  virtual bool ids_are_bytes() const { return false; }
};

// DataError lists the known names.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);
std::vector<std::string> tokenizer_names();  // sorted

// Adds a kind; at start-up, before threads. InternalError if the name is taken.
void register_tokenizer(const std::string& name, std::function<std::unique_ptr<Tokenizer>()> make);

}  // namespace hyper_parallel
