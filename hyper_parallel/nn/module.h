// SPDX-License-Identifier: Apache-2.0
// Modules: a tree of named children and parameter slots, a typed call, and hooks that see the tensors. Engines (fully_shard, tensor
// parallel styles, recompute) attach by hooks and slots and know no concrete model.
//
//   struct Mlp : ModuleOf<Mlp> {
//     Linear up{child("up"), {.in = 8, .out = 32}}, down{child("down"), {.in = 32, .out = 8}};
//     using ModuleOf::ModuleOf;
//     at::Tensor forward(const at::Tensor& x) { return down(silu(up(x))); }
//   };
//   Mlp mlp(Module::root());
//   materialize(mlp, {.dtype = at::kFloat, .seed = 1});   // initializer.h
//   at::Tensor y = mlp(x);
//
// Modules and slots are unmovable members, so a slot's address is stable; its tensor is swapped (meta, sharded piece, unsharded leaf).
// Walk order is construction order. The module tree must outlive every backward through it.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hyper_parallel/base/tensor_part.h"
#include "hyper_parallel/nn/initializer.h"
#include "hyper_parallel/nn/tensor_tree.h"

namespace hyper_parallel {

class Module;
using TensorRefs = std::span<at::Tensor* const>;

// Hooks may replace the tensors that they see. add_hook adds the innermost, add_outer_hook the outermost, before and after.
class ModuleHook {
 public:
  virtual ~ModuleHook() = default;
  virtual void pre_forward(Module&, TensorRefs arguments) {}
  virtual void post_forward(Module&, TensorRefs results) {}
  virtual void pre_backward(Module&) {}   // at the first gradient of any result, once per call and backward
  virtual void post_backward(Module&) {}  // when the gradients of all arguments are complete; never if an argument is a leaf
  virtual bool sees_backward() const { return false; }
};

class Parameter {
 public:
  Parameter(Module& owner, std::string name, std::vector<int64_t> sizes, Initializer initializer, bool decays = true);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;
  operator const at::Tensor&() const { return tensor; }

  const std::string name;            // within its module; the full name is found by walking
  const std::vector<int64_t> sizes;  // of the whole parameter
  const Initializer initializer;
  const bool decays;      // takes weight decay: false for norms and biases
  bool trainable = true;  // read when an engine attaches or materialize() runs
  at::Tensor tensor;      // meta until materialize() or an engine fills it
  int64_t numel() const;  // of the whole parameter

  // What this rank holds of it: all, unless a model-parallel style took a part while the slot was on meta (LayoutError else).
  void hold(TensorPart part);
  const TensorPart& part() const { return part_; }
  std::vector<int64_t> local_sizes() const { return part_.local_sizes(sizes); }

 private:
  TensorPart part_;
};

class Module {
 public:
  struct Slot {
    Module* parent = nullptr;
    std::string name;
  };
  static Slot root() { return {}; }
  explicit Module(Slot slot);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  void add_hook(std::shared_ptr<ModuleHook> hook);        // inside of those that are there
  void add_outer_hook(std::shared_ptr<ModuleHook> hook);  // outside
  void clear_hooks();
  // visit(prefix, module), parents first; the prefix ends in '.' unless empty.
  void walk(const std::function<void(const std::string&, Module&)>& visit, const std::string& prefix = "");
  // Every slot once, in walk order, under its first full name. Tied names are not listed.
  std::vector<std::pair<std::string, Parameter*>> named_parameters();
  // (tied full name, first full name) pairs.
  std::vector<std::pair<std::string, std::string>> tied_names();
  // The descendants whose full name matches the glob (base/string.h), in walk order.
  std::vector<std::pair<std::string, Module*>> find(const std::string& glob);

  const std::string name;
  Module* const parent;
  const std::vector<Module*>& children() const { return children_; }
  // Own slots and, under a further name, tied ones.
  const std::vector<std::pair<std::string, Parameter*>>& own_parameters() const { return parameters_; }
  // True while the latest call's arguments will bring post_backward: none of them is a leaf that needs a gradient.
  bool arguments_watched() const { return arguments_watched_; }

 protected:
  virtual ~Module() = default;  // polymorphic: styles ask what a module is
  Slot child(std::string child_name) { return {this, std::move(child_name)}; }
  void tie(std::string tied_name, Parameter& slot) { parameters_.emplace_back(std::move(tied_name), &slot); }
  using Tensors = c10::SmallVector<at::Tensor*, 8>;
  void before(const Tensors& arguments);
  void after(const Tensors& results);
  bool has_hooks() const { return !hooks_.empty(); }

 private:
  friend class Parameter;
  bool watch_arguments(const Tensors& arguments);
  std::vector<Module*> children_;
  std::vector<std::pair<std::string, Parameter*>> parameters_;
  std::vector<std::shared_ptr<ModuleHook>> hooks_;
  bool sees_backward_ = false;
  bool arguments_watched_ = false;
};

// Derived has `Result forward(arguments...)`, not virtual; call it as module(arguments...). Without hooks the call is forward itself.
template <class Derived>
class ModuleOf : public Module {
 public:
  using Module::Module;
  template <class... Args>
  auto operator()(Args&&... args) {
    using Result = decltype(std::declval<Derived&>().forward(std::forward<Args>(args)...));
    static_assert(TensorTree<Result> || std::is_arithmetic_v<Result>, "hooks must find the result's tensors: add visit_tensors to it");
    auto& self = static_cast<Derived&>(*this);
    if (!has_hooks()) [[likely]]
      return self.forward(std::forward<Args>(args)...);
    return hooked(self, std::tuple<Held<Args>...>(std::forward<Args>(args)...));
  }

 private:
  // An argument with tensors is held by value, so that a hook can replace it; any other passes by reference.
  template <class A>
  using Held = std::conditional_t<TensorTree<std::decay_t<A>>, std::decay_t<A>, A&&>;

  template <class... A>
  auto hooked(Derived& self, std::tuple<A...> held) {
    Tensors seen;
    auto collect = [&seen](auto& value) { visit_tensors(value, [&seen](at::Tensor& t) { seen.push_back(&t); }); };
    std::apply([&](auto&... a) { (collect(a), ...); }, held);
    before(seen);
    auto result = std::apply([&](auto&... a) { return self.forward(static_cast<A&&>(a)...); }, held);
    seen.clear();
    collect(result);
    after(seen);
    return result;
  }
};

}  // namespace hyper_parallel
