// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/redistribute.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/dtensor/detail/redistribute_steps.h"

namespace hyper_parallel {
namespace {

using Kind = RedistributeStep::Kind;
constexpr double kLatencyUs = 5, kBytesPerUs = 10'000;
constexpr double kMoveBoxesPenalty = 3;  // packing box by box over all ranks

double cost_of(const RedistributeStep& step) {
  if (step.kind == Kind::kSlice || step.kind == Kind::kKeepTerm) return 0.1;
  const double cost = kLatencyUs + double(step.bytes_sent) / kBytesPerUs;
  return step.kind == Kind::kMoveBoxes ? kMoveBoxesPenalty * cost : cost;
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kSlice:
      return "slice";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kMoveBoxes:
      return "move_boxes";
    case Kind::kKeepTerm:
      return "keep_term";
  }
  return "?";
}

// Dijkstra over the placements that the axes pass through: each axis is in its first state, its last, or replicated.
class PlanBuilder {
 public:
  PlanBuilder(const Spec* from, const Spec* to, AllowPartial allow_partial)
      : from_(from), to_(to), allow_partial_(allow_partial == AllowPartial::kYes) {
    for (int axis = 0; axis < from->mesh().num_axes(); ++axis) {
      auto& choices = choices_.emplace_back();
      for (const Placement& placement : {from->placement(axis), to->placement(axis), replicate()})
        if (std::find(choices.begin(), choices.end(), placement) == choices.end()) choices.push_back(placement);
    }
  }

  RedistributePlan build() {
    State state(choices_.size(), 0), target;
    for (size_t axis = 0; axis < choices_.size(); ++axis) target.push_back(index_of(axis, to_->placement(int(axis))));
    nodes_[state] = {0, {}, {}, false};
    while (true) {
      const State* next = nearest_open();
      HYPER_PARALLEL_CHECK(next != nullptr, "no redistribution from ", from_->to_string(), " to ", to_->to_string());
      state = *next;
      if (state == target) break;
      nodes_[state].closed = true;
      for (size_t axis = 0; axis < state.size(); ++axis)
        for (int choice = 0; choice < int(choices_[axis].size()); ++choice)
          if (choice != state[axis]) try_step(state, int(axis), choice);
      try_move_boxes(state, target);
    }
    return plan_of(target);
  }

 private:
  using State = std::vector<int>;
  struct Node {
    double cost;
    State previous;
    RedistributeStep step;
    bool closed;
  };

  int index_of(size_t axis, const Placement& placement) const {
    return int(std::find(choices_[axis].begin(), choices_[axis].end(), placement) - choices_[axis].begin());
  }

  std::vector<Placement> placements_of(const State& state) const {
    std::vector<Placement> placements;
    for (size_t axis = 0; axis < state.size(); ++axis) placements.push_back(choices_[axis][state[axis]]);
    return placements;
  }

  const State* nearest_open() const {
    const State* best = nullptr;
    double cost = std::numeric_limits<double>::infinity();
    for (const auto& [state, node] : nodes_)
      if (!node.closed && node.cost < cost) best = &state, cost = node.cost;
    return best;
  }

  void reach(const State& from, const State& to, const RedistributeStep& step) {
    const double cost = nodes_[from].cost + cost_of(step);
    auto [found, fresh] = nodes_.try_emplace(to, Node{cost, from, step, false});
    if (!fresh && !found->second.closed && cost < found->second.cost) found->second = {cost, from, step, false};
  }

  // A sharded axis may change only while it is the innermost of its dim: no later axis shards that dim, no other axis is ragged.
  bool innermost(const std::vector<Placement>& placements, int axis, const Placement& placement) const {
    if (!placement.is_shard()) return true;
    for (int other = 0; other < int(placements.size()); ++other) {
      if (other == axis) continue;
      if (placements[other].is_ragged() || (other > axis && placements[other].is_shard(placement.dim))) return false;
    }
    return true;
  }

  // Bytes of the largest shard: the rank at the origin, so that all ranks plan alike.
  int64_t local_bytes(const std::vector<Placement>& placements) const {
    const std::vector<int64_t> origin(placements.size(), 0);
    int64_t bytes = int64_t(c10::elementSize(from_->dtype()));
    for (int dim = 0; dim < from_->dim(); ++dim) {
      int64_t size = 0;
      for (const Interval& interval : dim_intervals(from_->mesh(), placements, dim, from_->sizes()[dim], origin)) size += interval.size();
      bytes *= size;
    }
    for (size_t axis = 0; axis < placements.size(); ++axis)
      if (placements[axis].is_ragged()) bytes /= std::max<int64_t>(from_->mesh().size(int(axis)), 1);
    return bytes;
  }

  void try_step(const State& state, int axis, int choice) {
    const auto placements = placements_of(state);
    State next = state;
    next[axis] = choice;
    const auto after = placements_of(next);
    const Placement &old_one = placements[axis], &new_one = after[axis];
    if (!innermost(placements, axis, old_one) || !innermost(after, axis, new_one) || layout_problem(from_->mesh(), after, from_->sizes()))
      return;
    const int64_t size = from_->mesh().size(axis), bytes = local_bytes(placements);
    RedistributeStep step{Kind::kSlice, axis, old_one.is_shard() ? old_one.dim : -1, new_one.is_shard() ? new_one.dim : -1};
    const bool to_shards = new_one.is_shard() || new_one.is_ragged();
    if (old_one.is_partial()) {
      if (new_one.is_partial()) return;
      step.kind = to_shards ? Kind::kReduceScatter : Kind::kAllReduce;
      step.bytes_sent = bytes * (size - 1) / size * (to_shards ? 1 : 2);
    } else if (new_one.is_partial()) {
      if (!allow_partial_ || !old_one.is_replicate()) return;
      step.kind = Kind::kKeepTerm;
    } else if (new_one.is_replicate()) {
      step.kind = Kind::kAllGather;
      step.bytes_sent = bytes * (size - 1);
    } else if (!old_one.is_replicate()) {
      if (old_one.kind != Placement::Kind::kShard || new_one.kind != Placement::Kind::kShard || old_one.dim == new_one.dim) return;
      step.kind = Kind::kAllToAll;
      step.bytes_sent = bytes * (size - 1) / size;
    }
    reach(state, next, step);
  }

  void try_move_boxes(const State& state, const State& target) {
    for (size_t axis = 0; axis < state.size(); ++axis)
      if (state[axis] != target[axis] && (choices_[axis][state[axis]].is_partial() || choices_[axis][target[axis]].is_partial())) return;
    reach(state, target, {Kind::kMoveBoxes, -1, -1, -1, local_bytes(placements_of(state)) * from_->mesh().size()});
  }

  RedistributePlan plan_of(State state) {
    RedistributePlan plan;
    plan.from_ = from_;
    plan.to_ = to_;
    plan.specs_.push_back(to_);
    while (!nodes_[state].previous.empty()) {
      const Node& node = nodes_[state];
      plan.steps_.insert(plan.steps_.begin(), node.step);
      plan.specs_.insert(plan.specs_.begin(), with_placements(from_, placements_of(node.previous)));
      state = node.previous;
    }
    return plan;
  }

  const Spec *from_, *to_;
  bool allow_partial_;
  std::vector<std::vector<Placement>> choices_;
  std::map<State, Node> nodes_;
};

namespace {

void check_pair(const Spec* from, const Spec* to, AllowPartial allow_partial) {
  const auto fail = [&](const std::string& why) {
    throw LayoutError(str("redistribute from ", from->to_string(), " to ", to->to_string(), ": ", why));
  };
  if (!(from->mesh() == to->mesh())) fail("the meshes differ");
  if (from->sizes() != to->sizes()) fail("the shapes differ");
  if (from->dtype() != to->dtype()) fail("the dtypes differ");
  for (int axis = 0; axis < from->mesh().num_axes(); ++axis) {
    const Placement &before = from->placement(axis), &after = to->placement(axis);
    if (!after.is_partial() || before == after) continue;
    if (before.is_partial()) fail(str("axis \"", from->mesh().axis_names()[axis], "\" can't change its reduction"));
    if (allow_partial == AllowPartial::kNo) fail(str("axis \"", from->mesh().axis_names()[axis], "\" can't become Partial"));
  }
}

}  // namespace

int64_t RedistributePlan::bytes_sent() const {
  int64_t bytes = 0;
  for (const auto& step : steps_) bytes += step.bytes_sent;
  return bytes;
}

double RedistributePlan::cost_us() const {
  double cost = 0;
  for (const auto& step : steps_) cost += cost_of(step);
  return cost;
}

at::Tensor RedistributePlan::run_aliasing(const at::Tensor& local) const {
  at::Tensor result = local;
  for (size_t index = 0; index < steps_.size(); ++index) result = detail::run_step(steps_[index], specs_[index], specs_[index + 1], result);
  return result;
}

at::Tensor RedistributePlan::run(const at::Tensor& local) const {
  at::Tensor result = run_aliasing(local);
  if (!steps_.empty() && result.is_alias_of(local)) result = result.clone(at::MemoryFormat::Contiguous);
  return result;
}

std::vector<at::Tensor> run_together(std::span<const RedistributePlan* const> plans, std::vector<at::Tensor> locals) {
  std::vector<size_t> next(plans.size(), 0);
  const auto step_of = [&](size_t plan) { return next[plan] < plans[plan]->steps_.size() ? &plans[plan]->steps_[next[plan]] : nullptr; };
  const auto use_of = [&](size_t plan) {
    return detail::StepUse{step_of(plan), plans[plan]->specs_[next[plan]], plans[plan]->specs_[next[plan] + 1], locals[plan]};
  };
  const auto advance_alone = [&](size_t plan) {
    for (const RedistributeStep* step = step_of(plan); step != nullptr && (step->kind == Kind::kSlice || step->kind == Kind::kKeepTerm);
         step = step_of(plan)) {
      const auto use = use_of(plan);
      locals[plan] = detail::run_step(*step, use.before, use.after, use.local);
      ++next[plan];
    }
  };
  const auto together = [](const detail::StepUse& a, const detail::StepUse& b) {
    if (a.step->kind != b.step->kind || a.step->axis != b.step->axis || a.before->dtype() != b.before->dtype()) return false;
    if (!(a.before->mesh() == b.before->mesh()) || a.step->axis < 0) return false;
    return !a.before->placement(a.step->axis).is_partial() ||
           a.before->placement(a.step->axis).reduce == b.before->placement(b.step->axis).reduce;
  };
  while (true) {
    std::vector<detail::StepUse> uses;
    std::vector<size_t> owners;
    for (size_t plan = 0; plan < plans.size(); ++plan) {
      advance_alone(plan);
      if (step_of(plan) == nullptr) continue;
      const auto use = use_of(plan);
      if (!uses.empty() && !together(uses[0], use)) continue;
      uses.push_back(use);
      owners.push_back(plan);
    }
    if (uses.empty()) return locals;
    std::vector<detail::StepUse*> pointers;
    for (auto& use : uses) pointers.push_back(&use);
    detail::run_steps_together(pointers);
    for (size_t index = 0; index < owners.size(); ++index) {
      locals[owners[index]] = uses[index].local;
      ++next[owners[index]];
    }
  }
}

std::string RedistributePlan::to_string() const {
  std::string text;
  for (const auto& step : steps_) {
    if (!text.empty()) text += " + ";
    text += str(name_of(step.kind), "(", step.axis < 0 ? "all" : from_->mesh().axis_names()[step.axis], ")");
  }
  return text.empty() ? "nothing" : text;
}

const Spec* with_placements(const Spec* from, const std::vector<Placement>& placements) {
  if (from->placements() == placements) return from;
  return intern_spec(Layout(from->mesh(), placements), from->sizes(), from->dtype(), {}, from->device());
}

const RedistributePlan& redistribute_plan(const Spec* from, const Spec* to, AllowPartial allow_partial) {
  struct Hash {
    size_t operator()(const std::pair<const Spec*, const Spec*>& pair) const {
      return reinterpret_cast<size_t>(pair.first) * 31 + reinterpret_cast<size_t>(pair.second);
    }
  };
  thread_local std::unordered_map<std::pair<const Spec*, const Spec*>, std::unique_ptr<RedistributePlan>, Hash> plans[2];
  auto& plan = plans[int(allow_partial)][{from, to}];
  if (!plan) {
    check_pair(from, to, allow_partial);
    plan = std::make_unique<RedistributePlan>(PlanBuilder(from, to, allow_partial).build());
  }
  return *plan;
}

}  // namespace hyper_parallel
