// SPDX-License-Identifier: Apache-2.0
// One rank of the tests that need processes: `dist_worker SCENARIO`, started by our launcher, torchrun, mpirun or the tests themselves.
// `dist_worker --launch N [--fork] SCENARIO` is the launcher itself.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <thread>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/log.h"
#include "hyper_parallel/collectives/launcher.h"
#include "hyper_parallel/collectives/progress_note.h"
#include "hyper_parallel/collectives/world.h"
#include "tests/collectives/support/conformance.h"

namespace hyper_parallel {
namespace {

using std::chrono::milliseconds;

void sum_once(World& world) {
  const at::Tensor x = at::full({1000}, world.rank() + 1, at::kFloat);
  world.group().all_reduce(x).wait();
  EXPECT_EQ(x[999].item<float>(), float(world.size() * (world.size() + 1) / 2));
}

void greet(World& world) {
  sum_once(world);
  std::printf("rank %d of %d, local %d of %d\n", world.rank(), world.size(), world.local_rank(), world.local_size());
}

void conformance(World& world) {
  for (const test::ConformanceCase& row : test::conformance_cases()) {
    SCOPED_TRACE(row.name);
    row.run(world.group());
  }
}

void killed(World& world) {
  sum_once(world);
  if (world.rank() == 1) kill(getpid(), SIGKILL);
  while (true) sum_once(world);
}

void throws(World& world) {
  sum_once(world);
  if (world.rank() == 1) throw DataError("file x is empty");
  while (true) sum_once(world);
}

void times_out(World& world) {
  world.group().barrier();
  if (world.rank() == 1)
    std::this_thread::sleep_for(milliseconds(3000));
  else
    world.group().all_reduce(at::ones({4, 2})).wait();
}

void mismatched(World& world) {
  sum_once(world);
  const at::Tensor x = at::ones({world.rank() == 0 ? 6 : 7}, at::kDouble);
  if (world.rank() == 0)
    world.group().all_reduce(x).wait();
  else
    world.group().all_reduce(x, ReduceOp::kMax).wait();
}

// Where ranks pass sizes that don't agree, without checks. A block that is too short must not pass either.
void other_size(World& world) { world.group().all_reduce(at::ones({world.rank() == 0 ? 6 : 7}, at::kDouble)).wait(); }

void other_large_size(World& world) { world.group().all_reduce(at::ones({world.rank() == 2 ? 3'000'001 : 3'000'000}, at::kDouble)).wait(); }

void short_broadcast(World& world) { world.group().broadcast(at::ones({world.rank() == 2 ? 8 : 4}), 0).wait(); }

// Rank 1 gives `given` elements, rank 0 expects 5.
void gather_uneven(World& world, int64_t given) {
  const std::vector<at::Tensor> outputs{at::ones({2}), at::ones({world.rank() == 0 ? 5 : given})};
  world.group().all_gather(outputs, world.rank() == 0 ? at::ones({2}) : at::ones({given})).wait();
}
void short_gather(World& world) { gather_uneven(world, 3); }
void empty_gather(World& world) { gather_uneven(world, 0); }

void other_op(World& world) {
  const at::Tensor x = at::ones({4});
  if (world.rank() == 0)
    world.group().all_reduce(x).wait();
  else
    world.group().broadcast(x, 0).wait();
}

// As many elements and bytes on both: nothing but the checks sees it, and without them the sum is right.
void other_shape(World& world) {
  const at::Tensor x = world.rank() == 0 ? at::ones({2, 6}) : at::ones({3, 4});
  world.group().all_reduce(x).wait();
  EXPECT_EQ(x.sum().item<float>(), float(12 * world.size()));
}

void other_dtype(World& world) { world.group().all_reduce(at::ones({4}, world.rank() == 0 ? at::kFloat : at::kInt)).wait(); }

void short_message(World& world) {
  if (world.rank() == 0)
    world.group().send(at::ones({4}), 1).wait();
  else
    world.group().recv(at::ones({6}), 0).wait();
}

void split_times_out(World& world) {
  const ProcessGroup half = world.group().split(world.rank() / 2, 0, "half");
  static const std::string* place = interned_place("layers.3");
  note_step(5);
  const PlaceScope scope(place);
  half.barrier();
  if (world.rank() == 3) std::this_thread::sleep_for(milliseconds(3000));
  half.all_reduce(at::ones({4})).wait();
}

void after_abandoned(World& world) {
  const at::Tensor x = at::ones({100'000});
  if (world.rank() == 1) {
    std::this_thread::sleep_for(milliseconds(500));
    world.group().all_reduce(x).wait();
  }
  try {
    const Work work = world.group().all_reduce(x);
    throw DataError("given up");
  } catch (const DataError&) {
  }
  world.group().all_reduce(x).wait();
}

void ends_early(World& world) {
  world.group().barrier();
  if (world.rank() == 1) return;
  std::this_thread::sleep_for(milliseconds(200));
  world.group().all_reduce(at::ones({4})).wait();
}

void runs_until_interrupted(World& world) {
  handle_interrupts();
  world.group().barrier();
  if (world.rank() == 0) std::printf("ready\n"), std::fflush(stdout);
  for (bool stop = false; !stop;) {
    const at::Tensor flag = at::full({1}, interrupted() ? 1 : 0, at::kInt);
    world.group().all_reduce(flag, ReduceOp::kMax).wait();
    stop = flag.item<int>() != 0;
  }
  std::printf("rank %d stopped by signal %d\n", world.rank(), interrupt_signal());
}

void runs_for_ever(World& world) {
  if (world.rank() == 0) std::printf("ready\n"), std::fflush(stdout);
  while (true) sum_once(world);
}

struct Scenario {
  void (*run)(World&);
  WorldOptions options;
  bool ends_together = true;
};

const std::map<std::string, Scenario> kScenarios{
    {"after_abandoned", {after_abandoned, {.timeout = std::chrono::seconds(10)}}},
    {"conformance", {conformance, {.timeout = std::chrono::seconds(30)}}},
    {"conformance_checked", {conformance, {.timeout = std::chrono::seconds(30), .check_collectives = true}}},
    {"empty_gather", {empty_gather, {.timeout = std::chrono::seconds(2)}}},
    {"ends_early", {ends_early, {.timeout = std::chrono::seconds(10)}, false}},
    {"greet", {greet, {}}},
    {"killed", {killed, {}}},
    {"mismatched", {mismatched, {.timeout = std::chrono::seconds(10), .check_collectives = true}}},
    {"other_dtype", {other_dtype, {.timeout = std::chrono::seconds(10)}}},
    {"other_large_size", {other_large_size, {.timeout = std::chrono::seconds(2)}}},
    {"other_op", {other_op, {.timeout = std::chrono::seconds(2)}}},
    {"other_op_patient", {other_op, {.timeout = std::chrono::seconds(10)}}},
    {"other_shape", {other_shape, {.timeout = std::chrono::seconds(10)}}},
    {"other_size", {other_size, {.timeout = std::chrono::seconds(2)}}},
    {"other_size_checked", {short_gather, {.timeout = std::chrono::seconds(10), .check_collectives = true}}},
    {"runs_for_ever", {runs_for_ever, {}}},
    {"runs_until_interrupted", {runs_until_interrupted, {}}},
    {"short_broadcast", {short_broadcast, {.timeout = std::chrono::seconds(2)}}},
    {"short_gather", {short_gather, {.timeout = std::chrono::seconds(2)}}},
    {"short_message", {short_message, {.timeout = std::chrono::seconds(2)}}},
    {"split_times_out", {split_times_out, {.timeout = milliseconds(800)}}},
    {"throws", {throws, {}}},
    {"times_out", {times_out, {.timeout = milliseconds(800)}}},
};

int run_rank(const Scenario& scenario) {
  World world = World::from_environment(scenario.options);
  scenario.run(world);
  if (scenario.ends_together) world.group().barrier();  // nobody leaves while another may still wait for it
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 3 : 0;
}

int guarded(const Scenario& scenario) {
  try {
    return run_rank(scenario);
  } catch (const Error& error) {
    log_error(error.what());
    return error.exit_code();
  }
}

}  // namespace
}  // namespace hyper_parallel

int main(int argc, char** argv) {
  setenv("OMP_NUM_THREADS", "1", 0);
  testing::InitGoogleTest(&argc, argv);
  const hp::Scenario& scenario = hp::kScenarios.at(argv[argc - 1]);
  if (argc < 4 || std::strcmp(argv[1], "--launch") != 0) return hp::guarded(scenario);
  const int num_ranks = std::atoi(argv[2]);
  if (std::strcmp(argv[3], "--fork") == 0)
    return hp::launch_processes({.num_ranks = num_ranks, .child = [&] { return hp::run_rank(scenario); }});
  return hp::launch_processes({.num_ranks = num_ranks, .argv = {argv[0], argv[argc - 1]}});
}
