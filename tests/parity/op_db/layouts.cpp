// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/op_db/layouts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>

namespace hyper_parallel::op_db {
namespace {

using Placements = std::vector<Placement>;

// The terms must be finite, too (replay.cpp: the first is twice the value).
bool may_be_partial(const at::Tensor& tensor) {
  return (tensor.is_floating_point() || tensor.is_complex()) && at::isfinite(tensor * 2).all().item<bool>();
}

class Enumeration {
 public:
  Enumeration(const std::vector<CallTensor>& tensors, int num_axes) : tensors_(tensors), num_axes_(num_axes) {}

  std::vector<Assignment> list() {
    add({});
    if (num_axes_ == 1)
      one_axis();
    else
      two_axes();
    return std::move(found_);
  }

 private:
  struct Change {
    size_t tensor;
    Placements placements;
  };

  void add(const std::vector<Change>& changes) {
    Assignment assignment{std::vector<Placements>(tensors_.size(), Placements(num_axes_, replicate()))};
    for (const Change& change : changes) assignment.placements[change.tensor] = change.placements;
    const auto same = [&](const Assignment& other) { return other.placements == assignment.placements; };
    if (std::none_of(found_.begin(), found_.end(), same)) found_.push_back(std::move(assignment));
  }

  int64_t dims(size_t tensor) const { return tensors_[tensor].value.dim(); }

  void one_axis() {
    int64_t most = 0;
    for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
      most = std::max(most, dims(tensor));
      for (int64_t dim = 0; dim < dims(tensor); ++dim) add({{tensor, {shard(int(dim))}}});
    }
    for (int64_t dim = 0; dim < most; ++dim) {
      std::vector<Change> left, right;
      for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
        if (dim >= dims(tensor)) continue;
        left.push_back({tensor, {shard(int(dim))}});
        right.push_back({tensor, {shard(int(dims(tensor) - 1 - dim))}});
      }
      add(left);
      add(right);
    }
    std::vector<Change> all;
    for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
      if (!may_be_partial(tensors_[tensor].value)) continue;
      all.push_back({tensor, {partial()}});
      add({all.back()});
    }
    add(all);
  }

  void two_axes() {
    for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
      const bool partial_too = may_be_partial(tensors_[tensor].value);
      for (int64_t dim = 0; dim < dims(tensor); ++dim) {
        const Placement one = shard(int(dim)), next = shard(int((dim + 1) % dims(tensor)));
        add_everywhere(tensor, {one, one});
        add_everywhere(tensor, {one, next});
        if (partial_too) add_everywhere(tensor, {partial(), one});
      }
    }
  }

  void add_everywhere(size_t tensor, const Placements& placements) {
    add({{tensor, placements}});
    std::vector<Change> changes;
    for (size_t other = 0; other < tensors_.size(); ++other)
      if (tensors_[other].value.sizes() == tensors_[tensor].value.sizes() &&
          (!placements[0].is_partial() || may_be_partial(tensors_[other].value)))
        changes.push_back({other, placements});
    add(changes);
  }

  const std::vector<CallTensor>& tensors_;
  int num_axes_;
  std::vector<Assignment> found_;
};

}  // namespace

std::vector<CallTensor> tensors_of(const Stack& arguments) {
  std::vector<CallTensor> tensors;
  const auto add = [&](const c10::IValue& value, size_t argument, int list_index) {
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) return;
    tensors.push_back({int(argument), list_index, value.toTensor()});
  };
  for (size_t argument = 0; argument < arguments.size(); ++argument) {
    const c10::IValue& value = arguments[argument];
    if (!value.isList()) {
      add(value, argument, -1);
      continue;
    }
    const auto items = value.toListRef();
    for (size_t index = 0; index < items.size(); ++index) add(items[index], argument, int(index));
  }
  return tensors;
}

std::string Assignment::text() const {
  std::string text;
  for (const Placements& one : placements) text += (text.empty() ? "" : ", ") + to_string(one);
  return text;
}

std::vector<Assignment> assignments_of(const std::vector<CallTensor>& tensors, int num_axes, size_t limit) {
  std::vector<Assignment> list = Enumeration(tensors, num_axes).list();
  if (list.size() > limit) list.resize(limit);
  return list;
}

}  // namespace hyper_parallel::op_db
