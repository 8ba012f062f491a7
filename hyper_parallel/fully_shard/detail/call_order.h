// SPDX-License-Identifier: Apache-2.0
// Which unit comes next, guessed from the latest pass: what prefetch goes by. Equal on every rank, since all make the same calls.
#pragma once
#include <cstddef>
#include <utility>
#include <vector>

namespace hyper_parallel::fsdp {

struct Unit;

class CallOrder {
 public:
  void guess(std::vector<Unit*> order) { expected_ = std::move(order); }
  bool known() const { return !expected_.empty(); }
  const std::vector<Unit*>& expected() const { return expected_; }
  void restart() { current_.clear(); }
  void note(Unit* unit) { current_.push_back(unit); }
  void keep() {
    expected_.swap(current_);
    current_.clear();
  }
  // The unit `distance` calls after the one noted last; nullptr at the end, or where this pass left the expected order.
  Unit* ahead(int distance) const {
    const size_t position = current_.size() + distance - 1;
    if (position >= expected_.size() || (!current_.empty() && expected_[current_.size() - 1] != current_.back())) return nullptr;
    return expected_[position];
  }

 private:
  std::vector<Unit*> expected_, current_;
};

}  // namespace hyper_parallel::fsdp
