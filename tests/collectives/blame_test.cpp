// SPDX-License-Identifier: Apache-2.0
// Whom messages blame, by world rank, and what they say of its progress.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/progress_note.h"
#include "hyper_parallel/collectives/world.h"

namespace hyper_parallel {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

template <class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing thrown";
}

void await(const std::atomic<bool>& flag) {
  for (int i = 0; i < 2000 && !flag.load(); ++i) std::this_thread::sleep_for(milliseconds(1));
}

// Rank 0 has left too, but it took part in #3: rank 1 is the one that is missing.
TEST(Blame, TheRankThatIsMissingNotTheFirstThatLeft) {
  Work parked;
  std::atomic<bool> is_parked{false};
  std::string message, parked_message;
  run_threads(3, [&](World& world) {
    const ProcessGroup& group = world.group();
    group.barrier();
    group.all_reduce(at::ones({4})).wait();
    if (world.rank() == 0) {
      parked = group.all_reduce(at::ones({4}));
      is_parked = true;
    }
    if (world.rank() != 2) return;
    await(is_parked);
    std::this_thread::sleep_for(milliseconds(30));  // rank 0 leaves meanwhile
    message = message_of([&] { group.all_reduce(at::ones({4})).wait(); });
    parked_message = message_of([&] { parked.wait(); });
  });
  EXPECT_EQ(message, "all_reduce #3 of group \"world\": rank 1 has ended; the last that it did was all_reduce #2");
  EXPECT_THAT(parked_message, HasSubstr("rank 1 has ended"));
}

TEST(Blame, ThePeerOfAMessageNotTheFirstThatLeft) {
  for (const bool sends : {false, true}) {
    const std::string message = message_of([&] {
      run_threads(4, [&](World& world) {
        world.group().barrier();
        const ProcessGroup others = world.group().subgroup(std::vector<int>{1, 2, 3}, "others");
        if (world.rank() != 3) return;
        std::this_thread::sleep_for(milliseconds(30));
        if (sends)
          others.send(at::ones({2}), 1).wait();
        else
          others.recv(at::ones({2}), 1).wait();
      });
    });
    EXPECT_EQ(message,
              str("rank 3: ", sends ? "send" : "recv", " #1 of group \"others\": rank 2 has ended; the last that it did was nothing"));
  }
}

TEST(Blame, MismatchesInASubGroupNameWorldRanks) {
  const std::string message = message_of([&] {
    run_threads(4, [&](World& world) {
      const ProcessGroup half = world.group().split(world.rank() / 2, 0, "half");
      half.all_reduce(at::ones({world.rank() == 3 ? 5 : 4})).wait();
    });
  });
  EXPECT_THAT(message, HasSubstr("all_reduce #1 of group \"half\": size differs: rank 2 has 4 elements (f32 [4]), rank 3 has 5 (f32 [5]) "
                                 "(ranks 2-3)"));
}

TEST(Blame, TimeOutSaysAtWhichStepAndPlaceTheMissingRankWas) {
  const std::string* layer = interned_place("layers.3");
  EXPECT_EQ(layer, interned_place(str("layers.", 3)));
  const auto run = [&](int64_t step, const std::string* place) {
    return message_of([&] {
      run_threads(3,
                  [&](World& world) {
                    const ProcessGroup pair = world.group().subgroup(std::vector<int>{1, 2}, "pair");
                    if (!pair) return;
                    note_step(step);
                    {
                      const PlaceScope scope(place);
                      pair.all_reduce(at::ones({2})).wait();
                    }
                    if (world.rank() == 1)
                      pair.all_gather(at::ones({2}), at::ones({1})).wait();
                    else
                      std::this_thread::sleep_for(milliseconds(400));
                  },
                  {.timeout = milliseconds(100)});
    });
  };
  const std::string start =
      "rank 1: time-out after 0.1 s in all_gather #2 of group \"pair\" (ranks 1-2), f32 [2] + 1 more\n"
      "  arrived: 1 (all_gather #2); missing: 2 last did all_reduce #1";
  EXPECT_EQ(run(12, layer), str(start, " at step 12, layers.3"));
  EXPECT_EQ(run(12, nullptr), str(start, " at step 12"));
  EXPECT_EQ(run(-1, layer), str(start, " at layers.3"));
}

}  // namespace
}  // namespace hyper_parallel
