// SPDX-License-Identifier: Apache-2.0
// How the sources of this folder fill a World.
#pragma once
#include "hyper_parallel/collectives/world.h"

namespace hyper_parallel {

class WorldBuilder {
 public:
  static World make(int rank, int size, int local_rank, int local_size, ProcessGroup group) {
    World world;
    world.rank_ = rank;
    world.size_ = size;
    world.local_rank_ = local_rank;
    world.local_size_ = local_size;
    world.group_ = std::move(group);
    return world;
  }
};

namespace detail {
// WorldOptions::check_collectives, or the environment's HYPER_PARALLEL_DEBUG.
bool wants_checks(const WorldOptions& options);
}  // namespace detail

}  // namespace hyper_parallel
