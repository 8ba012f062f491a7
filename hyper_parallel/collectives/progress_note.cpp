// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/progress_note.h"

#include <mutex>
#include <set>

namespace hyper_parallel {

const std::string* interned_place(std::string_view name) {
  static std::mutex mutex;
  static auto& names = *new std::set<std::string, std::less<>>;
  const std::lock_guard lock(mutex);
  const auto found = names.find(name);
  return found != names.end() ? &*found : &*names.emplace(name).first;
}

}  // namespace hyper_parallel
