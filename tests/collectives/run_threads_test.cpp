// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"

namespace hyper_parallel {
namespace {

using std::chrono::milliseconds;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(RunThreads, SumsOverRanks) {
  for (const int n : {1, 2, 3, 4, 8}) {
    run_threads(n, [n](World& world) {
      const at::Tensor x = at::full({5}, world.rank() + 1, at::kDouble);
      world.group().all_reduce(x).wait();
      EXPECT_TRUE(at::equal(x, at::full({5}, n * (n + 1) / 2, at::kDouble)));
    });
  }
}

TEST(RunThreads, ManyCollectivesWaitedForInAnyOrder) {
  run_threads(3, [](World& world) {
    for (int round = 0; round < 20; ++round) {
      std::vector<at::Tensor> tensors;
      std::vector<Work> works;
      for (int i = 0; i < 50; ++i) {
        tensors.push_back(at::full({i == 25 ? 40000 : 3}, i + world.rank(), at::kLong));
        works.push_back(world.group().all_reduce(tensors.back()));
      }
      for (int i = 0; i < 50; ++i) works[(i * (world.rank() * 2 + 3) + round) % 50].wait();
      for (int i = 0; i < 50; ++i) works[i].wait();
      for (int i = 0; i < 50; ++i) EXPECT_EQ(tensors[i][0].item<int64_t>(), 3 * i + 3);
    }
  });
}

TEST(RunThreads, FirstCauseIsRethrownWithItsRankAndType) {
  const auto body = [](World& world) {
    if (world.rank() == 2) throw DataError("file x is empty");
    world.group().barrier();
  };
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(run_threads(4, body), DataError);
  EXPECT_EQ(message_of([&] { run_threads(4, body); }), "rank 2: file x is empty");
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(2000));
}

TEST(RunThreads, RankThatThrowsWithWorkInFlightDoesNotHang) {
  const auto body = [](World& world) {
    const at::Tensor x = at::ones({100000});
    Work work = world.group().all_reduce(x);
    if (world.rank() == 0) throw ConfigError("bad");
    work.wait();
    world.group().barrier();
  };
  EXPECT_EQ(message_of([&] { run_threads(3, body); }), "rank 0: bad");
}

TEST(RunThreads, RankThatEndsEarlyIsNamed) {
  const std::string message = message_of([] {
    run_threads(3, [](World& world) {
      world.group().barrier();
      if (world.rank() != 1) world.group().all_reduce(at::ones({4})).wait();
    });
  });
  EXPECT_NE(message.find("all_reduce #2 of group \"world\": rank 1 has ended; the last that it did was barrier #1"), std::string::npos)
      << message;
}

TEST(RunThreads, TimeOutNamesWhoArrivedAndWhoDidNot) {
  const std::string message = message_of([] {
    run_threads(3,
                [](World& world) {
                  world.group().barrier();
                  const ProcessGroup pair = world.group().subgroup(std::vector<int>{0, 1}, "fsdp");
                  if (world.rank() == 0) pair.all_reduce(at::ones({4, 2})).wait();
                  if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(400));
                },
                {.timeout = milliseconds(100)});
  });
  EXPECT_EQ(message,
            "rank 0: time-out after 0.1 s in all_reduce #1 of group \"fsdp\" (ranks 0-1), f32 [4, 2]\n"
            "  arrived: 0 (all_reduce #1); missing: 1 last did nothing");
}

TEST(RunThreads, MismatchesAreNamed) {
  const auto run = [](const std::function<void(World&)>& body, bool check = false) {
    return message_of([&] { run_threads(2, body, {.check_collectives = check}); });
  };
  EXPECT_NE(run([](World& world) {
              world.group().all_reduce(at::ones({4 + world.rank()})).wait();
            }).find("all_reduce #1 of group \"world\": size differs: rank 0 has 4 elements (f32 [4]), rank 1 has 5 (f32 [5])"),
            std::string::npos);
  EXPECT_NE(run([](World& world) {
              world.group().all_reduce(at::ones({4}, world.rank() == 0 ? at::kFloat : at::kDouble)).wait();
            }).find("dtype differs: rank 0 has f32, rank 1 has f64"),
            std::string::npos);
  const auto other_op = [](World& world) {
    if (world.rank() == 0)
      world.group().barrier();
    else
      world.group().all_reduce(at::ones({4})).wait();
  };
  EXPECT_NE(run(other_op).find("operation differs: rank 0 does barrier no data, rank 1 does all_reduce f32 [4]"), std::string::npos);
  const auto other_shape = [](World& world) {
    world.group().all_reduce(at::ones(world.rank() == 0 ? at::IntArrayRef{2, 3} : at::IntArrayRef{3, 2})).wait();
  };
  EXPECT_EQ(run(other_shape), "");
  EXPECT_NE(run(other_shape, true).find("shape differs: rank 0 has [2, 3], rank 1 has [3, 2]"), std::string::npos);
}

TEST(RunThreads, SubGroupsByListAndBySplit) {
  run_threads(4, [](World& world) {
    const ProcessGroup odd = world.group().subgroup(std::vector<int>{3, 1}, "odd");
    EXPECT_EQ(bool(odd), world.rank() % 2 == 1);
    if (odd) {
      EXPECT_EQ(odd.rank(), world.rank() == 3 ? 0 : 1);
      const at::Tensor x = at::full({1}, world.rank(), at::kLong);
      odd.all_reduce(x).wait();
      EXPECT_EQ(x.item<int64_t>(), 4);
    }
    const ProcessGroup half = world.group().split(world.rank() / 2, -world.rank(), "half");
    EXPECT_EQ(half.ranks()[0], world.rank() / 2 * 2 + 1);
    const at::Tensor y = at::full({1}, world.rank(), at::kLong);
    half.all_reduce(y).wait();
    EXPECT_EQ(y.item<int64_t>(), world.rank() < 2 ? 1 : 5);
    EXPECT_FALSE(world.group().split(-1, 0, "nobody"));
  });
}

TEST(RunThreads, BusyRanksAreAbandonedAfterTheGrace) {
  std::atomic<bool> busy{true};
  std::string cause;
  const auto abandon = [&](std::exception_ptr failure) {  // a program would end here
    try {
      std::rethrow_exception(failure);
    } catch (const RuntimeError& error) {
      cause = error.what();
    }
    busy = false;
  };
  const auto body = [&](World& world) {
    if (world.rank() == 1) throw RuntimeError("no more disk");
    while (busy) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_THROW(run_threads(3, body, {.abandon = abandon, .failure_grace = std::chrono::milliseconds(50)}), RuntimeError);
  EXPECT_EQ(cause, "rank 1: no more disk");
}

TEST(RunThreads, BadArgumentsAreRejectedBeforeTheyTravel) {
  run_threads(2, [](World& world) {
    const ProcessGroup& group = world.group();
    EXPECT_THROW(group.all_gather(at::ones({5}), at::ones({2})), CollectiveError);
    EXPECT_THROW(group.all_reduce(at::ones({2}, at::kLong), ReduceOp::kAvg), CollectiveError);
    EXPECT_THROW(group.all_reduce(at::ones({2}, at::kComplexFloat)), CollectiveError);
    EXPECT_THROW(group.broadcast(at::ones({2}), 2), CollectiveError);
    EXPECT_THROW(group.send(at::ones({2}), world.rank()), CollectiveError);
    EXPECT_THROW(group.all_to_all(at::ones({3}), at::ones({3})), CollectiveError);
    EXPECT_THROW(group.reduce_scatter(at::ones({2}), at::ones({2, 2}).t()), CollectiveError);
    EXPECT_THROW(group.subgroup(std::vector<int>{0, 0}, "twice"), CollectiveError);
    group.barrier();
  });
  EXPECT_THROW(run_threads(0, [](World&) {}), ConfigError);
}

}  // namespace
}  // namespace hyper_parallel
