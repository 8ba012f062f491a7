// SPDX-License-Identifier: Apache-2.0
// Construction and destruction of the engine: which slot goes to which bucket, and the hooks.
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/progress_note.h"
#include "hyper_parallel/fully_shard/detail/engine.h"

namespace hyper_parallel::fsdp {

// Outlives the engine in the module's list of hooks: then `engine` is null.
struct UnitHook : ModuleHook {
  UnitHook(Engine* engine, Unit* unit) : engine(engine), unit(unit) {}
  bool sees_backward() const override { return true; }
  void pre_forward(Module&, TensorRefs) override {
    if (engine != nullptr) engine->pre_forward(*unit);
  }
  void post_forward(Module&, TensorRefs) override {
    if (engine != nullptr) engine->post_forward(*unit);
  }
  void pre_backward(Module&) override {
    if (engine != nullptr) engine->pre_backward(*unit);
  }
  void post_backward(Module&) override {
    if (engine != nullptr) engine->post_backward(*unit);
  }
  Engine* engine;
  Unit* unit;
};

namespace {

struct GradientHook : torch::autograd::PostAccumulateGradHook {
  GradientHook(Engine& engine, Unit& unit, Bucket& bucket, Entry& entry) : engine(engine), unit(unit), bucket(bucket), entry(entry) {}
  void operator()(const at::Tensor&) override { engine.on_gradient(unit, bucket, entry); }
  Engine& engine;
  Unit& unit;
  Bucket& bucket;
  Entry& entry;
};

void check_arguments(Module& root, std::span<Module* const> modules, const DeviceMesh& mesh) {
  if (mesh.num_axes() < 1 || mesh.num_axes() > 2) {
    throw LayoutError(str("fully_shard: the mesh must be (shard) or (replicate, shard), not ", mesh.to_string()));
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    const Module* above = modules[i] == nullptr ? nullptr : modules[i]->parent;
    while (above != nullptr && above != &root) above = above->parent;
    if (above == nullptr) {
      throw LayoutError(str("fully_shard: unit ", i, " ('", modules[i] == nullptr ? "null" : modules[i]->name, "') is not below the root"));
    }
    if (std::count(modules.begin(), modules.end(), modules[i]) > 1) {
      throw LayoutError(str("fully_shard: unit '", modules[i]->name, "' is listed twice"));
    }
  }
}

struct Home {
  std::string name;  // the first full name
  Unit* unit;
};

}  // namespace

Engine::Engine(Module& root, std::span<Module* const> modules, const DeviceMesh& mesh, const FullyShardOptions& options)
    : options_(options) {
  check_arguments(root, modules, mesh);
  groups_.shard = mesh.group(mesh.num_axes() - 1);
  if (mesh.num_axes() == 2 && mesh.size(0) > 1) groups_.replicate = mesh.group(0);
  make_units(root, modules);
  std::vector<Unit*> order;
  for (const auto& unit : units_) {
    unit->live = !groups_.sharded();
    unit->hook = std::make_shared<UnitHook>(this, unit.get());
    unit->module->add_outer_hook(unit->hook);
    if (unit.get() != root_) order.push_back(unit.get());
  }
  forward_order_.guess(std::move(order));
}

void Engine::make_units(Module& root, std::span<Module* const> modules) {
  std::map<const Module*, Unit*> unit_of;
  std::map<Parameter*, Home> homes;
  std::vector<Parameter*> slots;
  root.walk([&](const std::string& prefix, Module& module) {
    if (&module == &root || std::count(modules.begin(), modules.end(), &module) > 0) {
      Unit& unit = *units_.emplace_back(std::make_unique<Unit>(module));
      unit.place = interned_place(prefix.empty() ? "root" : prefix.substr(0, prefix.size() - 1));
      unit_of[&module] = &unit;
    } else {
      unit_of[&module] = unit_of.at(module.parent);
    }
    for (const auto& [name, slot] : module.own_parameters()) {
      const auto [home, fresh] = homes.try_emplace(slot, Home{prefix + name, unit_of[&module]});
      if (fresh) slots.push_back(slot);
      if (home->second.unit != unit_of[&module]) home->second.unit = units_.front().get();  // tied over units: the root's
    }
  });
  root_ = units_.front().get();
  for (Parameter* slot : slots) {
    auto& [name, unit] = homes.at(slot);
    if (!slot->tensor.is_meta()) throw LayoutError(str("fully_shard: ", name, " holds data already; attach before materializing"));
    const auto shared = options_.sharing.find(slot);
    const ParameterSharing sharing = shared == options_.sharing.end() ? ParameterSharing{} : shared->second;
    auto bucket = std::find_if(unit->buckets.begin(), unit->buckets.end(), [&](Bucket& b) { return b.takes(*slot, sharing); });
    if (bucket == unit->buckets.end()) {
      unit->buckets.emplace_back(groups_, slot->trainable, sharing);
      bucket = std::prev(unit->buckets.end());
      bucket->place = unit->place;
    }
    parameter_order_.emplace_back(&*bucket, bucket->entries.size());
    bucket->append(*slot, name, sharing);
  }
}

void Engine::materialize(const MaterializeOptions& options) {
  HYPER_PARALLEL_CHECK(!materialized_, "fully_shard: materialize() was called before");
  if (!c10::isFloatingType(options.dtype))
    throw LayoutError(str("fully_shard: parameters can't be of type ", c10::toString(options.dtype)));
  for (const auto& unit : units_) {
    for (Bucket& bucket : unit->buckets) bucket.materialize(options);
    watch_gradients(*unit);
  }
  materialized_ = true;
}

void Engine::watch_gradients(Unit& unit) {
  for (Bucket& bucket : unit.buckets) {
    if (!bucket.trainable) continue;
    for (Entry& entry : bucket.entries) {
      torch::autograd::impl::set_post_acc_grad_hooks(entry.leaf, std::make_unique<GradientHook>(*this, unit, bucket, entry));
    }
  }
}

Engine::~Engine() {
  for (const auto& unit : units_) unit->hook->engine = nullptr;
  if (!materialized_) return;
  reset();
  each_bucket([](Bucket& bucket) {
    for (Entry& entry : bucket.entries) {
      if (bucket.trainable) torch::autograd::impl::set_post_acc_grad_hooks(entry.leaf, nullptr);
    }
  });
}

std::vector<ShardedParameter> Engine::parameters() const {
  check_materialized();
  std::vector<ShardedParameter> parameters;
  for (const auto& [bucket, index] : parameter_order_) {
    const Entry& entry = bucket->entries[index];
    parameters.push_back({.name = entry.name,
                          .sizes = entry.slot->sizes,
                          .part = entry.slot->part(),
                          .data = entry.piece,
                          .grad = entry.gradient_piece,
                          .begin = entry.begin,
                          .trainable = bucket->trainable,
                          .decays = entry.slot->decays});
  }
  return parameters;
}

}  // namespace hyper_parallel::fsdp
