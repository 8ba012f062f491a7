// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/shard/op_registry.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/shard/detail/embedded_ops.h"

namespace hyper_parallel {
namespace {

std::map<std::string, RuleFunction>& rule_functions() {
  static auto& functions = *new std::map<std::string, RuleFunction>;
  return functions;
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

class RowParser {
 public:
  RowParser(std::string op, const YAML::Node& node, const std::string& file) {
    row_.op = std::move(op);
    row_.file = file;
    row_.line = node.Mark().line + 1;
    if (!node.IsMap()) fail("a row must be a map with the key `rule`");
    for (const auto& item : node) set(item.first.as<std::string>(), item.second);
    if (row_.rule.empty()) fail("a row needs the key `rule`");
  }
  OpRow take() { return std::move(row_); }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw LayoutError(str("op ", row_.op, ": ", why, "\n  in ", row_.file, ":", row_.line));
  }

  void set(const std::string& key, const YAML::Node& value) {
    row_.line = value.Mark().line + 1;
    if (key == "rule")
      parse_rule(value.as<std::string>());
    else if (key == "linear")
      parse_linear(value.as<std::string>());
    else if (key == "reduce")
      parse_reduce(value.as<std::string>());
    else if (key == "whole")
      row_.whole = value.as<std::string>();
    else if (key == "keep")
      row_.keep = value.as<std::vector<std::string>>();
    else if (key == "writes")
      row_.writes = value.as<std::vector<std::string>>();
    else if (key == "reads")
      row_.reads = value.as<std::vector<std::string>>();
    else if (key == "plain")
      row_.plain = value.as<std::vector<std::string>>();
    else if (key == "empty")
      row_.empty = value.as<bool>();
    else if (key == "each")
      row_.each = parse_kind(value.as<std::string>());
    else if (key == "doc")
      row_.doc = value.as<std::string>();
    else if (key == "example")
      row_.example = value.as<std::string>();
    else
      fail(str("unknown key `", key, "` (allowed: rule, each, linear, reduce, whole, empty, keep, writes, reads, plain, doc, example)"));
  }

  void parse_rule(const std::string& text) {
    row_.rule = text;
    row_.kind = parse_kind(text);
    if (row_.each == OpRow::Kind::kForeach) fail("each: \"foreach\" (allowed: pointwise, reduce, factor notation)");
  }

  OpRow::Kind parse_kind(const std::string& text) {
    using Kind = OpRow::Kind;
    if (const auto arrow = text.find("->"); arrow != std::string::npos) {
      row_.notation.inputs = parse_tensors(text.substr(0, arrow), text);
      row_.notation.outputs = parse_tensors(text.substr(arrow + 2), text);
      check_outputs(text);
      return Kind::kNotation;
    }
    static const std::map<std::string, Kind> words{{"pointwise", Kind::kPointwise},
                                                   {"reduce", Kind::kReduce},
                                                   {"foreach", Kind::kForeach},
                                                   {"replicate", Kind::kReplicate},
                                                   {"dynamic", Kind::kDynamic}};
    if (const auto word = words.find(text); word != words.end()) return word->second;
    const auto found = rule_functions().find(text);
    if (found == rule_functions().end()) {
      std::vector<std::string> known{"pointwise", "reduce", "foreach", "replicate", "dynamic"};
      for (const auto& [name, function] : rule_functions()) known.push_back(name);
      fail(str("no rule function `", text, "` (known: ", join(known, ", "), ", or notation with `->`)"));
    }
    row_.function = found->second;
    return Kind::kFunction;
  }

  std::vector<NotationTensor> parse_tensors(const std::string& text, const std::string& rule) const {
    std::vector<NotationTensor> tensors;
    for (const auto& group : split(text, ',')) {
      NotationTensor tensor;
      std::istringstream words(group);
      for (std::string word; words >> word;) {
        NotationDim dim{word, word.back() == '?'};
        if (dim.broadcast) dim.factor.pop_back();
        const bool letter = dim.factor.size() == 1 && (std::isalpha(dim.factor[0]) || dim.factor == "1" || dim.factor == "_");
        if (!letter && dim.factor != "...")
          fail(str("`", word, "` in \"", rule, "\" (allowed: one letter, a letter and `?`, `1`, `...`, `_`)"));
        if (!tensor.empty() && (dim.factor == "_" || tensor[0].factor == "_")) fail(str("`_` must stand alone in \"", group, "\""));
        if (dim.factor == "..." && !tensor.empty()) fail(str("`...` must come first in \"", group, "\""));
        tensor.push_back(dim);
      }
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }

  void check_outputs(const std::string& rule) const {
    for (const auto& output : row_.notation.outputs)
      for (const auto& dim : output) {
        bool known = dim.factor == "1" || dim.factor == "_";
        for (const auto& input : row_.notation.inputs)
          known |= std::any_of(input.begin(), input.end(), [&](const auto& other) { return other.factor == dim.factor; });
        if (!known) fail(str("output factor `", dim.factor, "` is in no input of \"", rule, "\""));
      }
  }

  void parse_linear(const std::string& text) {
    row_.linear = text;
    for (const auto& term : split(text, '+')) {
      auto& inputs = row_.terms.emplace_back();
      for (const auto& word : split(term, '*')) {
        const std::string number = trimmed(word);
        if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos)
          fail(str("linear: \"", text, "\" (expected like \"0 + 1 * 2\")"));
        inputs.push_back(std::stoi(number));
      }
    }
  }

  void parse_reduce(const std::string& text) {
    if (text == "none") return row_.reduce.reset();
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd})
      if (text == name_of(op)) {
        row_.reduce = op;
        return;
      }
    fail(str("reduce: \"", text, "\" (allowed: sum, avg, min, max, prod, none)"));
  }

  OpRow row_;
};

}  // namespace

RuleRegistration::RuleRegistration(const char* name, RuleFunction rule) {
  HYPER_PARALLEL_CHECK(rule_functions().emplace(name, rule).second, "two rule functions named ", name);
}

void parse_op_rows(std::string_view text, const std::string& file, std::map<std::string, OpRow>& rows) {
  YAML::Node document;
  try {
    document = YAML::Load(std::string(text));
  } catch (const YAML::Exception& error) {
    throw LayoutError(str("op rules: ", error.msg, "\n  in ", file, ":", error.mark.line + 1));
  }
  if (!document.IsMap()) throw LayoutError(str("op rules: the file must be a map from op names to rows\n  in ", file, ":1"));
  for (const auto& item : document) {
    const auto op = item.first.as<std::string>();
    OpRow row;
    try {
      row = RowParser(op, item.second, file).take();
    } catch (const YAML::Exception& error) {
      throw LayoutError(str("op ", op, ": ", error.msg, "\n  in ", file, ":", error.mark.line + 1));
    }
    if (auto found = rows.find(op); found != rows.end())
      throw LayoutError(str("op ", op, " has two rows\n  in ", file, ":", item.first.Mark().line + 1, "\n  and ", found->second.file, ":",
                            found->second.line));
    rows.emplace(op, std::move(row));
  }
}

namespace detail {

std::map<std::string, OpRow>& mutable_op_rows() {
  static auto& rows = *[] {
    auto* parsed = new std::map<std::string, OpRow>;
    for (const auto& file : embedded_op_files()) parse_op_rows(file.text, file.name, *parsed);
    add_other_forms(*parsed);
    return parsed;
  }();
  return rows;
}

}  // namespace detail

const std::map<std::string, OpRow>& op_rows() { return detail::mutable_op_rows(); }

std::vector<std::string> registered_ops() {
  std::vector<std::string> names;
  for (const auto& [name, row] : op_rows()) names.push_back(name);
  return names;
}

}  // namespace hyper_parallel
