// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/nn/module.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

bool takes_gradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

}  // namespace

Parameter::Parameter(Module& owner, std::string name, std::vector<int64_t> sizes, Initializer initializer, bool decays)
    : name(std::move(name)),
      sizes(std::move(sizes)),
      initializer(initializer),
      decays(decays),
      tensor(at::empty(this->sizes, at::TensorOptions(at::kMeta).dtype(at::kFloat))) {
  owner.parameters_.emplace_back(this->name, this);
}

int64_t Parameter::numel() const { return c10::multiply_integers(sizes); }

void Parameter::hold(TensorPart part) {
  if (!tensor.is_meta()) throw LayoutError(str("parameter ", name, " holds data already: shard it before materializing"));
  part_ = std::move(part);
  tensor = at::empty(local_sizes(), tensor.options());
}

Module::Module(Slot slot) : name(std::move(slot.name)), parent(slot.parent) {
  if (parent != nullptr) parent->children_.push_back(this);
}

void Module::add_hook(std::shared_ptr<ModuleHook> hook) {
  sees_backward_ |= hook->sees_backward();
  hooks_.push_back(std::move(hook));
}

void Module::add_outer_hook(std::shared_ptr<ModuleHook> hook) {
  sees_backward_ |= hook->sees_backward();
  hooks_.insert(hooks_.begin(), std::move(hook));
}

void Module::clear_hooks() {
  hooks_.clear();
  sees_backward_ = false;
}

void Module::walk(const std::function<void(const std::string&, Module&)>& visit, const std::string& prefix) {
  visit(prefix, *this);
  for (Module* child : children_) child->walk(visit, prefix + child->name + ".");
}

std::vector<std::pair<std::string, Parameter*>> Module::named_parameters() {
  std::vector<std::pair<std::string, Parameter*>> named;
  std::unordered_map<Parameter*, bool> seen;
  walk([&](const std::string& prefix, Module& module) {
    for (auto& [own_name, slot] : module.parameters_)
      if (seen.try_emplace(slot, true).second) named.emplace_back(prefix + own_name, slot);
  });
  return named;
}

std::vector<std::pair<std::string, std::string>> Module::tied_names() {
  std::vector<std::pair<std::string, std::string>> tied;
  std::unordered_map<Parameter*, std::string> first;
  walk([&](const std::string& prefix, Module& module) {
    for (auto& [own_name, slot] : module.parameters_) {
      const auto [entry, fresh] = first.try_emplace(slot, prefix + own_name);
      if (!fresh) tied.emplace_back(prefix + own_name, entry->second);
    }
  });
  return tied;
}

std::vector<std::pair<std::string, Module*>> Module::find(const std::string& glob) {
  std::vector<std::pair<std::string, Module*>> found;
  walk([&](const std::string& prefix, Module& module) {
    if (&module == this) return;
    const std::string full_name = prefix.substr(0, prefix.size() - 1);
    if (glob_match(glob, full_name)) found.emplace_back(full_name, &module);
  });
  return found;
}

void Module::before(const Tensors& arguments) {
  for (auto& hook : hooks_) hook->pre_forward(*this, {arguments.data(), arguments.size()});
  arguments_watched_ = sees_backward_ && at::GradMode::is_enabled() && watch_arguments(arguments);
}

void Module::after(const Tensors& results) {
  for (size_t i = hooks_.size(); i-- > 0;) hooks_[i]->post_forward(*this, {results.data(), results.size()});
  if (!sees_backward_ || !at::GradMode::is_enabled()) return;
  auto last_task = std::make_shared<int>(-1);
  for (at::Tensor* result : results) {
    if (!takes_gradient(*result)) continue;
    result->register_hook([this, last_task](const at::Tensor&) {
      const int task = torch::autograd::get_current_graph_task_id();
      if (std::exchange(*last_task, task) == task) return;
      for (auto& hook : hooks_) hook->pre_backward(*this);
    });
  }
}

bool Module::watch_arguments(const Tensors& arguments) {
  struct Count {
    size_t left = 0;  // in this backward
    size_t all = 0;
  };
  auto count = std::make_shared<Count>();
  for (at::Tensor* argument : arguments) {
    if (!takes_gradient(*argument)) continue;
    if (argument->is_leaf()) return false;  // its accumulation would overtake the nodes of this module
    ++count->all;
  }
  count->left = count->all;
  for (at::Tensor* argument : arguments) {
    if (!takes_gradient(*argument)) continue;
    argument->register_hook([this, count](const at::Tensor&) {
      if (--count->left > 0) return;
      count->left = count->all;
      for (size_t i = hooks_.size(); i-- > 0;) hooks_[i]->post_backward(*this);
    });
  }
  return count->all > 0;
}

}  // namespace hyper_parallel
