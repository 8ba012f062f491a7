// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/fully_shard/detail/engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cmath>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/fully_shard/detail/storage.h"

namespace hyper_parallel::fsdp {
namespace {

bool is_below(const Module* module, const Module* ancestor) {
  while (module != nullptr && module != ancestor) module = module->parent;
  return module == ancestor;
}

}  // namespace

void Engine::start_gather(Unit& unit) {
  if (unit.live || unit.gathering) return;
  for (Bucket& bucket : unit.buckets) bucket.start_gather();
  statistics.num_gathers += static_cast<int64_t>(unit.buckets.size());
  unit.gathering = true;
  count_live();
}

void Engine::wait_gather(Unit& unit) {
  if (unit.live) return;
  for (Bucket& bucket : unit.buckets) bucket.wait_gather();
  unit.gathering = false;
  unit.live = true;
}

void Engine::free_weights(Unit& unit) {
  if (resident_ || !groups_.sharded() || !(unit.live || unit.gathering)) return;
  for (Bucket& bucket : unit.buckets) bucket.release_weights();
  unit.live = unit.gathering = false;
}

void Engine::count_live() {
  int num_live = 0;
  for (const auto& unit : units_) num_live += unit->live || unit->gathering;
  statistics.most_units_live = std::max(statistics.most_units_live, num_live);
}

void Engine::prefetch(const CallOrder& order, int depth) {
  for (int distance = 1; distance <= depth; ++distance) {
    if (Unit* next = order.ahead(distance)) start_gather(*next);
  }
}

void Engine::flush_backward_prefetch() {
  if (std::exchange(backward_prefetch_due_, false)) prefetch(backward_order_, options_.backward_prefetch_depth);
}

void Engine::pre_forward(Unit& unit) {
  if (&unit == root_) {
    begin_forward();
  } else if (in_backward_) {
    begin_recompute(unit);
    flush_backward_prefetch();
  } else {
    forward_order_.note(&unit);
    if (!evaluating_) ++unit.num_calls;
  }
  start_gather(unit);
  if (!in_backward_) prefetch(forward_order_, options_.forward_prefetch_depth);
  wait_gather(unit);
}

void Engine::begin_forward() {
  check_materialized();
  if (in_backward_ && torch::autograd::get_current_graph_task_id() == -1) {
    throw RuntimeError("fully_shard: the last backward ended in an exception; call reset() before the next forward");
  }
  if (in_backward_) return;
  evaluating_ = !at::GradMode::is_enabled();
  forward_order_.restart();
  for (const auto& unit : units_) free_weights(*unit);  // left by a forward without backward: the weights may have changed since
}

// The arguments of a recomputed unit are leaves, which bring no post_backward. Its inner backward has run by the time of the next
// recompute.
void Engine::begin_recompute(Unit& unit) {
  for (const auto& other : units_) {
    const bool done = other->entered && other->recomputed && !other->watched && !deferred(*other);
    if (done && !is_below(unit.module, other->module)) finish(*other);
  }
}

void Engine::post_forward(Unit& unit) {
  unit.watched = unit.module->arguments_watched();
  unit.recomputed = in_backward_;
  if (in_backward_) return;
  if (&unit == root_) {
    end_forward();
  } else if (evaluating_ || options_.reshard_after_forward) {
    free_weights(unit);
  }
}

void Engine::end_forward() {
  forward_order_.keep();
  for (const auto& unit : units_) {
    if (evaluating_ || unit->gathering) free_weights(*unit);
  }
  evaluating_ = false;
}

void Engine::begin_backward() {
  if (std::exchange(in_backward_, true)) return;
  torch::autograd::Engine::get_default_engine().queue_callback([this] { end_backward(); });
  backward_order_.restart();
  if (!backward_order_.known()) backward_order_.guess({forward_order_.expected().rbegin(), forward_order_.expected().rend()});
}

void Engine::pre_backward(Unit& unit) {
  begin_backward();
  flush_backward_prefetch();
  if (&unit != root_) backward_order_.note(&unit);
  start_gather(unit);
  wait_gather(unit);
  unit.open_calls = unit.entered ? unit.open_calls + 1 : 1;
  unit.entered = true;
  for (Bucket& bucket : unit.buckets) bucket.owes_reduce = bucket.trainable;
  // The unit that ran before still holds its weights: the next gather waits until it let go of them, in its post_backward.
  backward_prefetch_due_ = true;
}

void Engine::post_backward(Unit& unit) {
  if (!unit.entered || !unit.watched || --unit.open_calls > 0 || &unit == root_) return;
  if (!deferred(unit)) {
    finish(unit);
  } else {
    free_weights(unit);
    flush_backward_prefetch();
  }
}

void Engine::on_gradient(Unit& unit, Bucket& bucket, Entry& entry) {
  if (!unit.entered) {
    throw RuntimeError(str("fully_shard: gradient of ", entry.name, " outside the backward of its unit '", unit.module->name,
                           "': a result left the unit by other ways than its return value"));
  }
  bucket.collect(entry);
  flush_backward_prefetch();
}

void Engine::finish(Unit& unit) {
  unit.entered = unit.recomputed = false;
  free_weights(unit);
  flush_backward_prefetch();
  if (reduce_gradients) reduce(unit);
}

// One reduce-scatter in flight at a time bounds the memory: the flat gradient of one unit leaves while the next one's fills.
void Engine::reduce(Unit& unit) {
  for (Bucket& bucket : unit.buckets) {
    if (!bucket.owes_reduce) continue;
    if (reducing_ != nullptr) reducing_->advance();
    bucket.reduce();
    reducing_ = &bucket;
    ++statistics.num_reduces;
  }
}

void Engine::end_backward() {
  flush_backward_prefetch();
  for (size_t i = units_.size(); i-- > 0;) {
    Unit& unit = *units_[i];
    unit.entered = unit.recomputed = false;
    unit.num_calls = 0;
    free_weights(unit);
  }
  for (size_t i = units_.size(); i-- > 0 && reduce_gradients;) reduce(*units_[i]);
  backward_order_.keep();
  in_backward_ = false;
}

void Engine::finish_backward() {
  check_materialized();
  if (in_backward_)
    throw RuntimeError("fully_shard: finish_backward() inside backward, or after one that ended in an exception: call reset()");
  for (size_t i = units_.size(); i-- > 0;) {
    units_[i]->num_calls = 0;
    free_weights(*units_[i]);
    reduce(*units_[i]);
  }
  each_bucket([](Bucket& bucket) { bucket.settle(); });
  reducing_ = nullptr;
}

double Engine::gradient_norm() const {
  double sum = 0;
  each_bucket([&](Bucket& bucket) {
    if (!bucket.trainable) return;
    HYPER_PARALLEL_CHECK(!bucket.owes_reduce, "gradient_norm() before finish_backward()");
    if (bucket.sharing.counted) sum += sum_of_squares(bucket.gradient_shard);
  });
  const at::Tensor total = at::full({1}, sum, at::kDouble);
  groups_.shard.all_reduce(total).wait();
  if (options_.model_group) options_.model_group.all_reduce(total).wait();
  return std::sqrt(total.const_data_ptr<double>()[0]);
}

void Engine::zero_grad() {
  each_bucket([](Bucket& bucket) { bucket.drop_gradient(); });
  reducing_ = nullptr;
}

void Engine::reset() {
  resident_ = false;
  each_bucket([](Bucket& bucket) { bucket.abandon(); });
  for (const auto& unit : units_) {
    unit->entered = unit->recomputed = unit->gathering = false;
    unit->live = !groups_.sharded();
    unit->num_calls = unit->open_calls = 0;
  }
  reducing_ = nullptr;
  in_backward_ = evaluating_ = backward_prefetch_due_ = false;
  reduce_gradients = true;
}

void Engine::unshard() {
  check_materialized();
  for (const auto& unit : units_) free_weights(*unit);
  for (const auto& unit : units_) start_gather(*unit);
  for (const auto& unit : units_) wait_gather(*unit);
  resident_ = true;
}

void Engine::reshard() {
  resident_ = false;
  for (const auto& unit : units_) free_weights(*unit);
}

void Engine::check_materialized() const {
  if (!materialized_) throw LayoutError("fully_shard: call materialize() first");
}

}  // namespace hyper_parallel::fsdp
