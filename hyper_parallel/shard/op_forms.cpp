// SPDX-License-Identifier: Apache-2.0
// Rows against schemas: what a row may say of its op, and the other forms of an op that a row holds for.
#include <algorithm>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/shard/op_registry.h"
#include "hyper_parallel/shard/propagate.h"

namespace hyper_parallel {
namespace {

using Schema = c10::FunctionSchema;

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

bool is_tensor(const c10::TypePtr& type) { return type->isSubtypeOf(*c10::OptionalType::ofTensor()); }
bool is_tensor_list(const c10::TypePtr& type) {
  const auto list = type->cast<c10::ListType>();
  return list && is_tensor(list->getElementType());
}

[[noreturn]] void fail(const OpRow& row, const std::string& why) {
  throw LayoutError(str("op ", row.op, ": ", why, "\n  in ", row.file, ":", row.line));
}

void check_names(const OpRow& row, const Schema& schema, const char* key, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (schema.argumentIndexWithName(name)) continue;
    std::vector<std::string> known;
    for (const auto& argument : schema.arguments()) known.push_back(argument.name());
    fail(row, str(key, ": the op has no argument `", name, "` (its arguments: ", join(known, ", "), ")"));
  }
}

void check_arity(const OpRow& row, const Schema& schema) {
  size_t tensors = 0, returns = 0;
  for (const auto& argument : schema.arguments()) {
    if (is_tensor_list(argument.type())) fail(row, "factor notation for an op with a list of tensors (allowed: `foreach`, or a function)");
    tensors += is_tensor(argument.type());
  }
  for (const auto& result : schema.returns()) returns += is_tensor(result.type());
  if (row.notation.inputs.size() != tensors)
    fail(row, str("\"", row.rule, "\" has ", row.notation.inputs.size(), " inputs, the op ", tensors, " tensor arguments"));
  if (row.notation.outputs.size() != returns)
    fail(row, str("\"", row.rule, "\" has ", row.notation.outputs.size(), " outputs, the op returns ", returns, " tensors"));
  for (const auto& term : row.terms)
    for (int index : term)
      if (size_t(index) >= tensors) fail(row, str("linear: tensor ", index, " of an op with ", tensors, " tensor arguments"));
}

bool tagged(const c10::OperatorHandle& op, at::Tag tag) {
  const auto tags = op.getTags();
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

bool is_out(const c10::Argument& argument) { return argument.kwarg_only() && writes_to(argument); }

// Whether `functional` takes the arguments of `form`, those of out= aside, and changes none of them.
bool is_functional_of(const Schema& functional, const Schema& form) {
  std::vector<const c10::Argument*> wanted;
  for (const auto& argument : form.arguments())
    if (!is_out(argument)) wanted.push_back(&argument);
  if (functional.arguments().size() != wanted.size()) return false;
  for (size_t index = 0; index < wanted.size(); ++index) {
    const auto& argument = functional.arguments()[index];
    if (argument.name() != wanted[index]->name() || *argument.type() != *wanted[index]->type() || is_out(argument)) return false;
  }
  return true;
}

std::string base_of_form(const Schema& schema) {
  const std::string& name = schema.name();
  const auto ends = [&](const std::string& end) {
    return name.size() > end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  if (std::any_of(schema.arguments().begin(), schema.arguments().end(), is_out)) return name;
  if (ends("__")) return "";
  if (ends("_") && !schema.arguments().empty() && writes_to(schema.arguments()[0])) return name.substr(0, name.size() - 1);
  return ends("_copy") ? name.substr(0, name.size() - 5) : "";
}

// An out= form may also go by way of an op that libtorch composes.
std::optional<OpRow> form_row(const std::map<std::string, OpRow>& rows, const c10::OperatorHandle& functional,
                              const c10::OperatorHandle& op, bool out) {
  const auto found = rows.find(full_name(functional.operator_name()));
  OpRow form;
  if (found != rows.end()) {
    form = found->second;
    if (form.kind == OpRow::Kind::kOut || form.kind == OpRow::Kind::kInplaceView) return std::nullopt;
  } else if (!out || !functional.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
             op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    return std::nullopt;
  }
  form.functional = full_name(functional.operator_name());
  form.op = full_name(op.operator_name());
  form.example.clear();
  if (out) form.kind = OpRow::Kind::kOut;
  if (!out && tagged(op, at::Tag::inplace_view)) form.kind = OpRow::Kind::kInplaceView;
  return form;
}

}  // namespace

void check_op_row(const OpRow& row) {
  const auto dot = row.op.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema({row.op.substr(0, dot), dot == std::string::npos ? "" : row.op.substr(dot + 1)});
  if (!op) fail(row, "libtorch has no such op");
  const Schema& schema = op->schema();
  check_names(row, schema, "keep", row.keep);
  check_names(row, schema, "writes", row.writes);
  check_names(row, schema, "reads", row.reads);
  check_names(row, schema, "plain", row.plain);
  if (!row.whole.empty()) check_names(row, schema, "whole", {row.whole});
  if (row.kind == OpRow::Kind::kNotation) check_arity(row, schema);
}

void add_other_forms(std::map<std::string, OpRow>& rows) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::map<std::string, std::vector<c10::OperatorHandle>> by_base;
  for (const auto& name : dispatcher.getAllOpNames())
    if (const auto op = dispatcher.findSchema(name)) by_base[name.name].push_back(*op);
  // Twice: the out= form of a `_copy` form.
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<OpRow> forms;
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op || rows.count(full_name(name))) continue;
      const auto found = by_base.find(base_of_form(op->schema()));
      if (found == by_base.end()) continue;
      const bool out = found->first == name.name;
      for (const auto& functional : found->second) {
        if (!is_functional_of(functional.schema(), op->schema())) continue;
        if (auto form = form_row(rows, functional, *op, out)) forms.push_back(std::move(*form));
        break;
      }
    }
    for (OpRow& form : forms) rows.emplace(form.op, std::move(form));
  }
}

}  // namespace hyper_parallel
