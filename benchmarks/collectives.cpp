// SPDX-License-Identifier: Apache-2.0
// Collectives of our backends beside libtorch's own gloo in the same run: one JSON line for each case, times in microseconds.
//
//   thread ...   ranks as threads against libtorch's gloo over as many processes
//   gloo ...     our gloo backend against libtorch's gloo, both over processes
//
// `bench_collectives [SECONDS [CASE]]`: measuring time for each case and side (0.3), after 50 ms of warm-up; only cases whose name contains
// CASE. The two sides over processes take turns, and the lower quartile of the repetitions counts, as rank 0 sees it: other programs on the
// machine disturb both sides, and little.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "benchmarks/json_line.h"
#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/launcher.h"
#include "hyper_parallel/collectives/world.h"

namespace hyper_parallel {
namespace {

using Clock = std::chrono::steady_clock;

enum Kind { kAllReduce, kReduceScatter, kAllGather, kNumKinds };
constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather"};
constexpr int64_t kBytes[] = {4, int64_t(64) << 10, int64_t(1) << 20, int64_t(16) << 20};
constexpr const char* kSizeNames[] = {"4 B", "64 KiB", "1 MiB", "16 MiB"};
constexpr int kNumSizes = 4;
constexpr int kRanks[] = {2, 4};

constexpr auto kWarmUp = std::chrono::milliseconds(50);  // of each case and side: the first calls of a process are many times slower

constexpr int kTurns = 4;

double seconds_for_each = 0.3;
std::string wanted;

struct Tensors {
  at::Tensor whole, part;
  Tensors(int64_t bytes, int num_ranks)
      : whole(at::ones({std::max<int64_t>(bytes / 4 / num_ranks, 1) * num_ranks})), part(at::ones({whole.numel() / num_ranks})) {}
};

// One side of a case. `agree` makes one number, rank 0's, the same on all ranks.
struct Side {
  std::function<void()> call;
  std::function<int64_t(int64_t)> agree;
};

class Timer {
 public:
  explicit Timer(Side side) : side_(std::move(side)) {
    const auto start = Clock::now();
    for (int64_t count = 1; side_.agree(Clock::now() - start < kWarmUp) != 0; count = std::min<int64_t>(2 * count, 64)) timed_us(count);
    const double once = timed_us(3);
    batch_ = side_.agree(std::max<int64_t>(1, int64_t(1000 / once)));
    num_batches_ = side_.agree(std::clamp<int64_t>(int64_t(seconds_for_each * 1e6 / kTurns / (once * double(batch_))), 2, 100));
  }
  void turn() {
    for (int64_t i = 0; i < num_batches_; ++i) times_.push_back(timed_us(batch_));
  }
  double quartile_us() {
    const auto quartile = times_.begin() + std::ptrdiff_t(times_.size() / 4);
    std::nth_element(times_.begin(), quartile, times_.end());
    return *quartile;
  }

 private:
  double timed_us(int64_t count) const {
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) side_.call();
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / double(count);
  }

  const Side side_;
  int64_t batch_ = 1, num_batches_ = 1;
  std::vector<double> times_;
};

Side side_of(const ProcessGroup& group, Kind kind, int64_t bytes) {
  const Tensors tensors(bytes, group.size());
  const auto call = [=] {
    if (kind == kAllReduce)
      group.all_reduce(tensors.whole).wait();
    else if (kind == kReduceScatter)
      group.reduce_scatter(tensors.part, tensors.whole).wait();
    else
      group.all_gather(tensors.whole, tensors.part).wait();
  };
  const auto agree = [=](int64_t mine) {
    const at::Tensor value = at::ones({1}, at::kLong) * mine;
    group.broadcast(value, 0).wait();
    return value.item<int64_t>();
  };
  return {call, agree};
}

Side side_of(const c10::intrusive_ptr<c10d::ProcessGroupGloo>& gloo, Kind kind, int64_t bytes) {
  const auto tensors = std::make_shared<Tensors>(bytes, gloo->getSize());
  const auto call = [=] {
    std::vector<at::Tensor> whole{tensors->whole};
    if (kind == kAllReduce)
      gloo->allreduce(whole)->wait();
    else if (kind == kReduceScatter)
      gloo->_reduce_scatter_base(tensors->part, tensors->whole)->wait();
    else
      gloo->_allgather_base(tensors->whole, tensors->part)->wait();
  };
  const auto agree = [=](int64_t mine) {
    std::vector<at::Tensor> value{at::ones({1}, at::kLong) * mine};
    gloo->broadcast(value)->wait();
    return value[0].item<int64_t>();
  };
  return {call, agree};
}

struct Results {
  double thread[kNumKinds][kNumSizes], ours[kNumKinds][kNumSizes], libtorch[kNumKinds][kNumSizes];
};

std::string name_of_case(Kind kind, int size, int num_ranks) { return str(kNames[kind], " ", kSizeNames[size], ", ", num_ranks, " ranks"); }

template <class Body>
void for_cases(int num_ranks, Body&& body) {
  for (int kind = 0; kind < kNumKinds; ++kind)
    for (int size = 0; size < kNumSizes; ++size)
      if (name_of_case(Kind(kind), size, num_ranks).find(wanted) != std::string::npos) body(Kind(kind), size);
}

int run_process(Results& results) {
  at::set_num_threads(1);
  World world = World::from_environment();
  c10d::TCPStoreOptions store_options;
  store_options.port = uint16_t(std::atoi(std::getenv("MASTER_PORT")));
  store_options.waitWorkers = false;
  auto store = c10::make_intrusive<c10d::PrefixStore>("bench", c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store_options));
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, world.rank(), world.size(), options);
  for_cases(world.size(), [&](Kind kind, int size) {
    Timer ours(side_of(world.group(), kind, kBytes[size])), libtorch(side_of(gloo, kind, kBytes[size]));
    for (int turn = 0; turn < kTurns; ++turn) ours.turn(), libtorch.turn();
    if (world.rank() == 0) results.ours[kind][size] = ours.quartile_us(), results.libtorch[kind][size] = libtorch.quartile_us();
  });
  world.group().barrier();
  return 0;
}

void print(const char* backend, Kind kind, int size, int num_ranks, double ours, double peer) {
  print_json_line(
      {.bench = "collectives", .name = str(backend, " ", name_of_case(kind, size, num_ranks)), .ours = ours, .peer = peer, .unit = "us"});
}

int run(int num_ranks) {
  void* shared = mmap(nullptr, sizeof(Results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Results& results = *static_cast<Results*>(shared);
  const int code = launch_processes({.num_ranks = num_ranks, .child = [&] { return run_process(results); }});
  if (code != 0) return code;
  run_threads(num_ranks, [&](World& world) {
    for_cases(num_ranks, [&](Kind kind, int size) {
      Timer timer(side_of(world.group(), kind, kBytes[size]));
      for (int turn = 0; turn < kTurns; ++turn) timer.turn();
      if (world.rank() == 0) results.thread[kind][size] = timer.quartile_us();
    });
  });
  for_cases(num_ranks, [&](Kind kind, int size) {
    print("thread", kind, size, num_ranks, results.thread[kind][size], results.libtorch[kind][size]);
    print("gloo", kind, size, num_ranks, results.ours[kind][size], results.libtorch[kind][size]);
  });
  munmap(shared, sizeof(Results));
  return 0;
}

}  // namespace
}  // namespace hyper_parallel

int main(int argc, char** argv) {
  if (argc > 1) hp::seconds_for_each = std::atof(argv[1]);
  if (argc > 2) hp::wanted = argv[2];
  for (const int num_ranks : hp::kRanks)
    if (const int code = hp::run(num_ranks); code != 0) return code;
  return 0;
}
