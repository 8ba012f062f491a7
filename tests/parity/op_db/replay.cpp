// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/op_db/replay.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/dtensor/dtensor.h"

namespace hyper_parallel::op_db {
namespace {

// Terms whose sum is exact in any order: 2x, -x, 0, 0, ...
at::Tensor term_of(const at::Tensor& whole, int64_t index) { return index == 0 ? whole * 2 : index == 1 ? -whole : at::zeros_like(whole); }

at::Tensor distributed(const at::Tensor& whole, const std::vector<Placement>& placements, const DeviceMesh& mesh) {
  at::Tensor value = whole.clone();
  std::vector<Placement> without_partial = placements;
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_partial()) continue;
    value = term_of(value, mesh.coordinate(int(axis)));
    without_partial[axis] = replicate();
  }
  const DTensor plain = distribute_tensor(value, Layout(mesh, without_partial));
  if (without_partial == placements) return plain;
  return from_local(plain.to_local().clone(), Layout(mesh, placements), whole.sizes().vec());
}

struct Tolerance {
  double relative, absolute;
};

Tolerance tolerance_of(at::ScalarType dtype) {
  switch (c10::toRealValueType(dtype)) {
    case at::kDouble:
      return {1e-9, 1e-10};
    case at::kFloat:
      return {1e-5, 1e-5};
    default:
      return {1e-2, 1e-2};  // half, bfloat16
  }
}

// The absolute floor is relative to the largest value: sums in another order cancel differently.
bool close(const at::Tensor& found, const at::Tensor& expected) {
  if (!expected.is_floating_point() && !expected.is_complex()) return found.equal(expected);
  if (expected.numel() == 0) return true;
  const Tolerance tolerance = tolerance_of(expected.scalar_type());
  const bool wide = expected.is_complex();
  const at::Tensor a = found.to(wide ? at::kComplexDouble : at::kDouble), b = expected.to(wide ? at::kComplexDouble : at::kDouble);
  const at::Tensor size = b.abs(), finite = size.masked_select(at::isfinite(size));
  const double scale = finite.numel() > 0 ? std::max(1.0, finite.max().item<double>()) : 1.0;
  const at::Tensor near = (a - b).abs() <= size * tolerance.relative + tolerance.absolute * scale;
  const at::Tensor both_finite = at::isfinite(a) & at::isfinite(b);
  return ((both_finite & near) | (a == b) | (at::isnan(a) & at::isnan(b))).all().item<bool>();
}

class Comparison {
 public:
  explicit Comparison(bool random) : random_(random) {}

  // Where the values differ, or nothing.
  std::string difference(const c10::IValue& found, const c10::IValue& expected, const std::string& what) const {
    if (expected.isNone()) return "";
    if (expected.isTensor()) return tensor_difference(found.toTensor(), expected.toTensor(), what);
    if (!expected.isList()) return random_ || equal(found, expected) ? "" : what + " is another value";
    const auto found_items = found.toListRef(), expected_items = expected.toListRef();
    if (found_items.size() != expected_items.size()) return str(what, " has ", found_items.size(), " items, not ", expected_items.size());
    for (size_t index = 0; index < expected_items.size(); ++index)
      if (auto text = difference(found_items[index], expected_items[index], str(what, "[", index, "]")); !text.empty()) return text;
    return "";
  }

 private:
  static bool equal(const c10::IValue& found, const c10::IValue& expected) {
    if (!expected.isScalar() || !found.isScalar()) return found == expected;
    const auto a = found.toScalar().toComplexDouble(), b = expected.toScalar().toComplexDouble();
    return a == b || std::abs(a - b) <= 1e-9 * std::max(1.0, std::abs(b)) || (std::isnan(a.real()) && std::isnan(b.real()));
  }

  std::string tensor_difference(const at::Tensor& found, const at::Tensor& expected, const std::string& what) const {
    if (found.defined() != expected.defined()) return what + (expected.defined() ? " is undefined" : " is defined");
    if (!found.defined()) return "";
    // Collective: before any return that other ranks might not take.
    const at::Tensor whole = is_dtensor(found) ? DTensor(found).full_tensor() : found;
    if (found.sizes() != expected.sizes()) return str(what, " has sizes ", found.sizes().vec(), ", not ", expected.sizes().vec());
    if (whole.sizes() != found.sizes()) return str(what, " gathers to ", whole.sizes().vec(), ", not ", found.sizes().vec());
    if (whole.scalar_type() != expected.scalar_type() || found.scalar_type() != expected.scalar_type())
      return str(what, " has dtype ", toString(whole.scalar_type()), ", not ", toString(expected.scalar_type()));
    if (random_ || close(whole, expected)) return "";
    return str(what, " differs", layout_text(found));
  }

  static std::string layout_text(const at::Tensor& tensor) {
    return is_dtensor(tensor) ? " (its placements: " + to_string(DTensor(tensor).layout().placements()) + ")" : " (plain)";
  }

  bool random_;
};

template <class Function>
Outcome guarded(const Function& function) {
  try {
    return function();
  } catch (const LayoutError& error) {
    return {Verdict::kRaised, error.what()};
  } catch (const CollectiveError& error) {
    return {Verdict::kWrong, str("CollectiveError: ", error.what())};
  } catch (const std::exception& error) {
    return {Verdict::kWrong, str("exception: ", std::string(error.what()).substr(0, 300))};
  }
}

Stack make_stack(const RecordedCall& call, const std::vector<CallTensor>& tensors, const Assignment& assignment, const DeviceMesh& mesh) {
  Stack stack;
  for (const c10::IValue& argument : call.arguments) {
    if (!argument.isList())
      stack.push_back(argument);
    else {
      c10::impl::GenericList list(argument.toList().elementType());
      for (const c10::IValue& item : argument.toListRef()) list.push_back(item);
      stack.push_back(std::move(list));
    }
  }
  for (size_t index = 0; index < tensors.size(); ++index) {
    const CallTensor& one = tensors[index];
    const at::Tensor tensor = distributed(one.value, assignment.placements[index], mesh);
    if (one.list_index < 0)
      stack[one.argument] = tensor;
    else
      stack[one.argument].toList().set(one.list_index, tensor);
  }
  return stack;
}

Outcome compare_all(const RecordedCall& call, const Stack& arguments, const Stack& results) {
  const Comparison comparison(call.random);
  std::string first;
  const auto compare = [&](const c10::IValue& found, const c10::IValue& expected, const std::string& what) {
    const std::string text = comparison.difference(found, expected, what);
    if (first.empty()) first = text;
  };
  for (size_t index = 0; index < results.size(); ++index) compare(results[index], call.results[index], str("result ", index));
  for (const auto& [argument, expected] : call.written) compare(arguments[argument], expected, str("written argument ", argument));
  return first.empty() ? Outcome{} : Outcome{Verdict::kWrong, first};
}

}  // namespace

const char* name_of(Verdict verdict) {
  static const char* const names[] = {"passed", "raised", "wrong"};
  return names[int(verdict)];
}

Outcome Agreement::meet(int rank, const Outcome& outcome) {
  std::unique_lock lock(mutex_);
  if (abandoned_) throw Abandoned();
  own_[rank] = outcome;
  const int64_t round = round_;
  if (++arrived_ < own_.size()) {
    if (!changed_.wait_for(lock, kPatience, [&] { return round_ != round || abandoned_; }) || abandoned_) {
      if (!abandoned_) merged_ = {Verdict::kWrong, "a rank waits for ever while this one says: " + outcome.message};
      abandoned_ = true;
      changed_.notify_all();
      throw Abandoned();
    }
    return merged_;
  }
  arrived_ = 0;
  ++round_;
  merged_ = *std::max_element(own_.begin(), own_.end(), [](const auto& a, const auto& b) { return a.verdict < b.verdict; });
  const bool some_passed = std::any_of(own_.begin(), own_.end(), [](const auto& one) { return one.verdict == Verdict::kPassed; });
  if (merged_.verdict == Verdict::kRaised && some_passed) merged_ = {Verdict::kWrong, "only some ranks raise: " + merged_.message};
  abandoned_ = std::any_of(own_.begin(), own_.end(), [](const auto& one) { return one.message.starts_with("CollectiveError"); });
  changed_.notify_all();
  if (abandoned_) throw Abandoned();
  return merged_;
}

Outcome Agreement::of_abandoned() {
  std::lock_guard lock(mutex_);
  return merged_;
}

Outcome replay(const RecordedCall& call, const std::vector<CallTensor>& tensors, const Assignment& assignment, const DeviceMesh& mesh,
               int rank, Agreement& agreement) {
  Stack arguments, results;
  Outcome outcome = guarded([&]() -> Outcome {
    arguments = make_stack(call, tensors, assignment, mesh);
    results = arguments;
    call.op.callBoxed(&results);
    return {};
  });
  outcome = agreement.meet(rank, outcome);
  if (outcome.verdict != Verdict::kPassed) return outcome;
  return agreement.meet(rank, guarded([&] { return compare_all(call, arguments, results); }));
}

}  // namespace hyper_parallel::op_db
