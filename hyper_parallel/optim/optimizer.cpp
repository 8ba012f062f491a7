// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/optim/optimizer.h"

#include <map>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

struct Registration {
  OptimizerFactory factory;
  std::string doc;
};

std::map<std::string, Registration>& registry() {
  static std::map<std::string, Registration> map;
  return map;
}

}  // namespace

bool register_optimizer(const char* name, OptimizerFactory factory, const char* doc) {
  const bool fresh = registry().emplace(name, Registration{factory, doc}).second;
  HYPER_PARALLEL_CHECK(fresh, "optimizer '", name, "' is registered twice");
  return true;
}

std::vector<OptimizerInfo> registered_optimizers() {
  std::vector<OptimizerInfo> all;
  for (const auto& [name, registration] : registry()) all.push_back({name, registration.doc});
  return all;
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& name, std::vector<OptimizerParameter> parameters,
                                          const OptimizerOptions& options) {
  const auto found = registry().find(name);
  if (found == registry().end()) {
    std::string known;
    for (const auto& [other, registration] : registry()) known += (known.empty() ? "" : ", ") + other;
    throw ConfigError("unknown optimizer '" + name + "' (known: " + known + ")");
  }
  return found->second.factory(std::move(parameters), options);
}

}  // namespace hyper_parallel
