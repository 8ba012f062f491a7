// SPDX-License-Identifier: Apache-2.0
// When to gather, free and reduce: the events of module hooks and gradients turned into calls of Bucket. The order of collectives follows
// from the calls of modules alone, never from which gradients a rank has.
//
//   pre_forward    gather this unit and those ahead        post_forward   free it (not the root)
//   pre_backward   gather this unit                        post_backward  free it, gather those ahead, reduce its gradients
//
// A unit is finished at post_backward if its arguments bring one. Otherwise (integer or leaf arguments, several calls, the root) it is
// finished at the end of backward; under recompute around the unit, whose arguments are leaves, when the next recompute begins.
#pragma once
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "hyper_parallel/fully_shard/detail/bucket.h"
#include "hyper_parallel/fully_shard/detail/call_order.h"
#include "hyper_parallel/fully_shard/fully_shard.h"

namespace hyper_parallel::fsdp {

struct UnitHook;

struct Unit {
  explicit Unit(Module& module) : module(&module) {}
  Module* module;
  const std::string* place = nullptr;  // its full name, for messages
  std::deque<Bucket> buckets;          // one for each kind of parameter; addresses stay
  std::shared_ptr<UnitHook> hook;
  bool gathering = false, live = false;  // live: the slots hold the whole weights
  bool watched = false;                  // the latest call will bring post_backward
  bool recomputed = false;               // the latest call was made inside backward
  bool entered = false;                  // in backward, from pre_backward to finish
  int num_calls = 0;                     // since the last end of backward, recompute and evaluation not counted
  int open_calls = 0;                    // pre_backward seen, post_backward not yet
};

class Engine {
 public:
  Engine(Module& root, std::span<Module* const> modules, const DeviceMesh& mesh, const FullyShardOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void materialize(const MaterializeOptions& options);
  void zero_grad();
  void finish_backward();
  double gradient_norm() const;
  void reset();
  void unshard();
  void reshard();
  std::vector<ShardedParameter> parameters() const;

  void pre_forward(Unit& unit);
  void post_forward(Unit& unit);
  void pre_backward(Unit& unit);
  void post_backward(Unit& unit);
  void on_gradient(Unit& unit, Bucket& bucket, Entry& entry);

  bool reduce_gradients = true;
  FullyShardStatistics statistics;

 private:
  void make_units(Module& root, std::span<Module* const> modules);
  void watch_gradients(Unit& unit);
  void start_gather(Unit& unit);
  void wait_gather(Unit& unit);
  void free_weights(Unit& unit);
  void prefetch(const CallOrder& order, int depth);
  void flush_backward_prefetch();
  void begin_forward();
  void end_forward();
  void begin_recompute(Unit& unit);
  void begin_backward();
  void end_backward();
  void finish(Unit& unit);
  void reduce(Unit& unit);
  void count_live();
  bool deferred(const Unit& unit) const { return &unit == root_ || unit.num_calls > 1; }
  void check_materialized() const;
  template <class F>
  void each_bucket(F&& f) const {
    for (const auto& unit : units_)
      for (Bucket& bucket : unit->buckets) f(bucket);
  }

  Groups groups_;
  FullyShardOptions options_;
  std::vector<std::unique_ptr<Unit>> units_;  // walk order, the root first
  std::vector<std::pair<Bucket*, size_t>> parameter_order_;
  Unit* root_ = nullptr;
  CallOrder forward_order_, backward_order_;
  Bucket* reducing_ = nullptr;  // the last one whose reduce-scatter may be in flight
  bool backward_prefetch_due_ = false;
  bool in_backward_ = false, evaluating_ = false, resident_ = false, materialized_ = false;
};

}  // namespace hyper_parallel::fsdp
