// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/op_db/recorded.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::op_db {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  explicit Reader(std::string& data) : data_(data) {}

  // `length`: of fixed-size lists, which may be given as one number.
  c10::IValue value(const Json& json, const c10::TypePtr& type, int length = 0) const {
    if (auto optional = type->cast<c10::OptionalType>())
      return json.is_null() ? c10::IValue() : value(json, optional->getElementType(), length);
    if (auto list = type->cast<c10::ListType>()) return json.is_null() ? c10::IValue() : list_of(json, list->getElementType(), length);
    switch (type->kind()) {
      case c10::TypeKind::TensorType:
        return json.is_null() ? c10::IValue(at::Tensor()) : c10::IValue(tensor(json));
      case c10::TypeKind::IntType:
        return json.is_object() ? json.begin().value().get<int64_t>() : json.is_boolean() ? int64_t(json.get<bool>()) : json.get<int64_t>();
      case c10::TypeKind::FloatType:
        return number(json);
      case c10::TypeKind::BoolType:
        return json.is_boolean() ? json.get<bool>() : json.get<int64_t>() != 0;
      case c10::TypeKind::NumberType:
        return c10::IValue(scalar(json));
      case c10::TypeKind::StringType:
        return json.get<std::string>();
      case c10::TypeKind::DeviceObjType:
        return c10::IValue(c10::Device(c10::kCPU));
      default:
        HYPER_PARALLEL_CHECK(json.is_null(), "argument of type ", type->str());
        return {};
    }
  }

 private:
  static double number(const Json& json) {
    if (!json.is_string()) return json.get<double>();
    const std::string text = json.get<std::string>();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    return text == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  }

  static at::Scalar scalar(const Json& json) {
    if (json.is_boolean()) return json.get<bool>();
    if (json.is_number_integer()) return json.get<int64_t>();
    if (json.is_object()) return c10::complex<double>(number(json["complex"][0]), number(json["complex"][1]));
    return number(json);
  }

  at::Tensor tensor(const Json& json) const {
    if (!json.is_object() || json.contains("complex")) {
      at::Tensor wrapped = at::scalar_tensor(scalar(json), json.is_object()           ? at::kComplexDouble
                                                           : json.is_boolean()        ? at::kBool
                                                           : json.is_number_integer() ? at::kLong
                                                                                      : at::kDouble);
      wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
      return wrapped;
    }
    const Json& parts = json["tensor"];
    return at::from_blob(data_.data() + parts[2].get<int64_t>(), parts[1].get<std::vector<int64_t>>(),
                         at::TensorOptions(at::ScalarType(parts[0].get<int>())));
  }

  c10::IValue list_of(const Json& json, const c10::TypePtr& element, int length) const {
    const size_t count = json.is_array() ? json.size() : std::max(length, 1);
    c10::impl::GenericList list(element);
    for (size_t index = 0; index < count; ++index) list.push_back(value(json.is_array() ? json[index] : json, element));
    return c10::IValue(std::move(list));
  }

  std::string& data_;
};

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError(str(path.string(), ": can't be read"));
  return {std::istreambuf_iterator<char>(file), {}};
}

RecordedCall read_call(const Json& json, const Reader& reader) {
  const std::string name = json["op"];
  const auto dot = name.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchema({name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  if (!handle) throw DataError(str("recorded op ", name, ": libtorch has no such op"));
  RecordedCall call{0, name, *handle, {}, {}, {}, json["random"]};
  const auto& schema = handle->schema();
  for (size_t index = 0; index < schema.arguments().size(); ++index) {
    const auto& argument = schema.arguments()[index];
    call.arguments.push_back(reader.value(json["arguments"][index], argument.type(), argument.N().value_or(0)));
    const std::string key = std::to_string(index);
    if (json["written"].contains(key)) call.written[int(index)] = reader.value(json["written"][key], argument.type());
  }
  for (size_t index = 0; index < schema.returns().size(); ++index) {
    const Json& result = json["results"][index];
    call.results.push_back(result.is_null() ? c10::IValue() : reader.value(result, schema.returns()[index].type()));
  }
  return call;
}

}  // namespace

Recording::Recording(const std::filesystem::path& folder) : data_(text_of(folder / "tensors.bin")) {
  const Json json = Json::parse(text_of(folder / "calls.json"));
  const Reader reader(data_);
  for (const Json& one : json["calls"]) {
    calls.push_back(read_call(one, reader));
    calls.back().index = int(calls.size()) - 1;
  }
}

}  // namespace hyper_parallel::op_db
