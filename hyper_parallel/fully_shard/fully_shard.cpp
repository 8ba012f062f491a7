// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/fully_shard/fully_shard.h"

#include "hyper_parallel/fully_shard/detail/engine.h"

namespace hyper_parallel {

FullyShard::FullyShard(Module& root, std::span<Module* const> units, const DeviceMesh& mesh, const FullyShardOptions& options)
    : engine_(std::make_unique<fsdp::Engine>(root, units, mesh, options)) {}
FullyShard::~FullyShard() = default;

void FullyShard::materialize(const MaterializeOptions& options) { engine_->materialize(options); }
void FullyShard::zero_grad() { engine_->zero_grad(); }
void FullyShard::set_reduce_gradients(bool reduce) { engine_->reduce_gradients = reduce; }
void FullyShard::finish_backward() { engine_->finish_backward(); }
double FullyShard::gradient_norm() const { return engine_->gradient_norm(); }
void FullyShard::reset() { engine_->reset(); }
void FullyShard::unshard() { engine_->unshard(); }
void FullyShard::reshard() { engine_->reshard(); }
std::vector<ShardedParameter> FullyShard::parameters() const { return engine_->parameters(); }
const FullyShardStatistics& FullyShard::statistics() const { return engine_->statistics; }

StateDict FullyShard::state_dict() const {
  StateDict state;
  for (ShardedParameter& parameter : engine_->parameters()) {
    state.push_back(range_entry(std::move(parameter.name), std::move(parameter.sizes), parameter.data, parameter.begin, parameter.part));
  }
  return state;
}

}  // namespace hyper_parallel
