// SPDX-License-Identifier: Apache-2.0
// Small string helpers: str(parts...) for messages, join, glob match, nearest name for "did you mean".
#pragma once
#include <concepts>
#include <ranges>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hyper_parallel {

// Writes any range of printable things as [a, b, c], the way shapes and rank lists appear in every message.
template <class Range>
std::string bracketed(const Range& range) {
  std::ostringstream out;
  out << '[';
  const char* separator = "";
  for (const auto& item : range) out << std::exchange(separator, ", ") << item;
  out << ']';
  return out.str();
}

namespace internal {
template <class T>
void append(std::ostringstream& out, const T& part) {
  if constexpr (std::same_as<T, bool>)
    out << (part ? "true" : "false");
  else if constexpr (std::ranges::contiguous_range<const T> && !std::convertible_to<const T&, std::string_view>)
    out << bracketed(part);
  else if constexpr (requires { out << part; })
    out << part;  // after vectors: libtorch prints those without brackets
  else
    out << bracketed(part);
}
}  // namespace internal

// Concatenates anything printable; ranges print bracketed. For messages only: hot paths make no strings.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (internal::append(out, parts), ...);
  return out.str();
}

std::string join(std::span<const std::string> parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);

// `*` stands for any characters but '.', `**` for any characters: "layers.*.mlp" matches "layers.3.mlp".
bool glob_match(std::string_view pattern, std::string_view text);

// The candidate with the least edit distance to `name`, or "" if none is near enough to be a typing mistake.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

}  // namespace hyper_parallel
