// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/detail/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

using nlohmann::json;

struct DtypeName {
  at::ScalarType dtype;
  const char* name;
};

constexpr std::array kDtypes = {
    DtypeName{at::kFloat, "F32"},
    DtypeName{at::kBFloat16, "BF16"},
    DtypeName{at::kHalf, "F16"},
    DtypeName{at::kDouble, "F64"},
    DtypeName{at::kLong, "I64"},
    DtypeName{at::kInt, "I32"},
    DtypeName{at::kShort, "I16"},
    DtypeName{at::kChar, "I8"},
    DtypeName{at::kByte, "U8"},
    DtypeName{at::kUInt16, "U16"},
    DtypeName{at::kUInt32, "U32"},
    DtypeName{at::kUInt64, "U64"},
    DtypeName{at::kBool, "BOOL"},
    DtypeName{at::kFloat8_e4m3fn, "F8_E4M3"},
    DtypeName{at::kFloat8_e5m2, "F8_E5M2"},
    DtypeName{at::kComplexFloat, "C64"},
};

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DtypeName& entry : kDtypes) names.emplace_back(entry.name);
  return names;
}

// Parses the header; a key that occurs twice would silently hide a tensor.
json parse_header(std::string_view text, const std::string& file) {
  std::set<std::string> seen;
  std::string repeated;
  const auto on_event = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1 && !seen.insert(parsed.get<std::string>()).second)
      repeated = parsed.get<std::string>();
    return true;
  };
  json header;
  try {
    header = json::parse(text, on_event);
  } catch (const json::exception& error) {
    throw CheckpointError(str(file, ": damaged header: ", error.what()));
  }
  if (!repeated.empty()) throw CheckpointError(str(file, ": damaged header: tensor \"", repeated, "\" occurs twice"));
  if (!header.is_object()) throw CheckpointError(str(file, ": damaged header: not a JSON object"));
  return header;
}

std::vector<int64_t> integer_list(const json& entry, const char* key, const std::string& where) {
  const auto found = entry.is_object() ? entry.find(key) : entry.end();
  const bool valid = found != entry.end() && found->is_array() && std::all_of(found->begin(), found->end(), [](const json& value) {
                       return value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT64_MAX};
                     });
  if (!valid) throw CheckpointError(str(where, ": damaged header: ", key, " must be a list of integers >= 0"));
  return found->get<std::vector<int64_t>>();
}

int64_t expected_bytes(const SafetensorsInfo& info, const std::string& where) {
  int64_t num_bytes = static_cast<int64_t>(c10::elementSize(info.dtype));
  for (const int64_t size : info.sizes) {
    if (__builtin_mul_overflow(num_bytes, size, &num_bytes)) throw CheckpointError(str(where, ": shape ", info.sizes, " is too large"));
  }
  return num_bytes;
}

SafetensorsInfo parse_entry(const json& entry, int64_t data_begin, const std::string& where) {
  SafetensorsInfo info;
  info.sizes = integer_list(entry, "shape", where);
  const std::vector<int64_t> offsets = integer_list(entry, "data_offsets", where);
  if (offsets.size() != 2) throw CheckpointError(str(where, ": damaged header: data_offsets must be two integers, found ", offsets));
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) throw CheckpointError(str(where, ": damaged header: no dtype"));
  try {
    info.dtype = safetensors_dtype(dtype->get<std::string>());
  } catch (const CheckpointError& error) {
    throw CheckpointError(str(where, ": ", error.what()));
  }
  const int64_t expected = expected_bytes(info, where);
  if (offsets[1] - offsets[0] != expected) {
    throw CheckpointError(str(where, ": ", safetensors_name(info.dtype), " ", info.sizes, " takes ", expected, " bytes, the header gives ",
                              offsets[1] - offsets[0]));
  }
  info.begin_bytes = data_begin + offsets[0];
  info.end_bytes = data_begin + offsets[1];
  return info;
}

std::map<std::string, std::string> parse_metadata(const json& metadata, const std::string& file) {
  const bool valid =
      metadata.is_object() && std::all_of(metadata.begin(), metadata.end(), [](const json& value) { return value.is_string(); });
  if (!valid) throw CheckpointError(str(file, ": damaged header: __metadata__ must map strings to strings"));
  return metadata.get<std::map<std::string, std::string>>();
}

// Data must be exactly the tensors, one after another.
void check_coverage(const std::map<std::string, SafetensorsInfo>& tensors, int64_t data_begin, int64_t file_bytes,
                    const std::string& file) {
  std::vector<std::pair<const std::string, SafetensorsInfo> const*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::tie(a->second.begin_bytes, a->second.end_bytes) < std::tie(b->second.begin_bytes, b->second.end_bytes);
  });
  int64_t end = data_begin;
  for (const auto* entry : order) {
    if (entry->second.begin_bytes != end) {
      throw CheckpointError(
          str(file, ": damaged header: tensor \"", entry->first, "\" begins at byte ", entry->second.begin_bytes, ", expected ", end));
    }
    end = entry->second.end_bytes;
  }
  if (end > file_bytes) throw CheckpointError(str(file, ": truncated: expected ", end, " bytes, found ", file_bytes));
  if (end < file_bytes)
    throw CheckpointError(str(file, ": ", file_bytes - end, " bytes too long: expected ", end, " bytes, found ", file_bytes));
}

}  // namespace

const char* safetensors_name(at::ScalarType dtype) {
  for (const DtypeName& entry : kDtypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  throw CheckpointError(str("dtype ", c10::toString(dtype), " has no safetensors name (allowed: ", dtype_names(), ")"));
}

at::ScalarType safetensors_dtype(const std::string& name) {
  for (const DtypeName& entry : kDtypes) {
    if (name == entry.name) return entry.dtype;
  }
  throw CheckpointError(str("unknown dtype \"", name, "\" (allowed: ", dtype_names(), ")"));
}

namespace detail {

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> content, const std::string& file) {
  constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
  const int64_t file_bytes = static_cast<int64_t>(content.size());
  if (file_bytes < 8) throw CheckpointError(str(file, ": truncated: a safetensors file has at least 8 bytes, found ", file_bytes));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, content.data(), 8);
  if (header_bytes > kMaxHeaderBytes) {
    throw CheckpointError(
        str(file, ": damaged header, or not a safetensors file: header length ", header_bytes, " (at most ", kMaxHeaderBytes, ")"));
  }
  const int64_t data_begin = 8 + static_cast<int64_t>(header_bytes);
  if (data_begin > file_bytes)
    throw CheckpointError(str(file, ": truncated: header ends at byte ", data_begin, ", found ", file_bytes, " bytes"));
  const json parsed = parse_header({reinterpret_cast<const char*>(content.data()) + 8, header_bytes}, file);
  SafetensorsHeader header;
  for (const auto& [name, entry] : parsed.items()) {
    if (name == "__metadata__")
      header.metadata = parse_metadata(entry, file);
    else
      header.tensors.emplace(name, parse_entry(entry, data_begin, str(file, ": tensor \"", name, "\"")));
  }
  check_coverage(header.tensors, data_begin, file_bytes, file);
  return header;
}

std::string make_safetensors_header(std::span<const SafetensorsItem> items, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names{"__metadata__"};
  int64_t begin = 0;
  for (const SafetensorsItem& item : items) {
    if (!names.insert(item.name).second) throw CheckpointError(str("tensor name \"", item.name, "\" is given twice or reserved"));
    const int64_t end = begin + expected_bytes({item.dtype, item.sizes, 0, 0}, item.name);
    // Pushed, not assigned by key: assignment searches all earlier keys.
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        item.name, nlohmann::ordered_json{{"dtype", safetensors_name(item.dtype)}, {"shape", item.sizes}, {"data_offsets", {begin, end}}});
    begin = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string result(8, '\0');
  std::memcpy(result.data(), &length, 8);
  return result + text;
}

}  // namespace detail
}  // namespace hyper_parallel
