// SPDX-License-Identifier: Apache-2.0
// What this rank is at, for messages about collectives: "missing: 2 last did reduce_scatter #117 at step 12, layers.3".
//
//   note_step(12);                                                  // once a step
//   const std::string* place = interned_place("layers.3");          // once, at set-up
//   {
//     const PlaceScope scope(place);                                // around the calls: two stores
//     group.reduce_scatter(shard, whole);                           // keeps step and place as its own
//   }
//
// The note belongs to the calling thread: set it on the thread that posts.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace hyper_parallel {

struct ProgressNote {
  int64_t step = -1;  // -1: none
  const std::string* place = nullptr;
};

inline constinit thread_local ProgressNote progress_note;

inline void note_step(int64_t step) { progress_note.step = step; }

class PlaceScope {
 public:
  explicit PlaceScope(const std::string* place) : outer_(std::exchange(progress_note.place, place)) {}
  ~PlaceScope() { progress_note.place = outer_; }
  PlaceScope(const PlaceScope&) = delete;
  PlaceScope& operator=(const PlaceScope&) = delete;

 private:
  const std::string* outer_;
};

// The one copy of `name`, which lives as long as the process: other ranks may read it after its owner has gone.
const std::string* interned_place(std::string_view name);

}  // namespace hyper_parallel
