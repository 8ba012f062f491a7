// SPDX-License-Identifier: Apache-2.0
// What the FSDP engine costs a unit beside moving data: collectives that do nothing, weights of a few elements, against the same modules
// without an engine. Prints a JSON line a case; the limit is 10 us a unit.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include <chrono>
#include <deque>

#include "benchmarks/json_line.h"
#include "hyper_parallel/base/string.h"
#include "hyper_parallel/collectives/detail/backend.h"
#include "hyper_parallel/fully_shard/fully_shard.h"

namespace {

using namespace hyper_parallel;  // NOLINT: a program

constexpr int kNumUnits = 32;
constexpr double kLimitUs = 10;

class NullBackend final : public Backend {
 public:
  NullBackend() : Backend({0, 1}, 0, "null") {}
  const char* kind() const override { return "null"; }
  detail::Call& begin() override {
    call_.clear();
    return call_;
  }
  Work post(detail::Call& call) override {
    call.clear();
    return {};
  }
  int64_t propose_key() override { return 0; }
  void use_key(int64_t) override {}
  std::shared_ptr<Backend> make_subgroup(std::vector<int>, int, const std::string&, int64_t) override { return nullptr; }

 private:
  detail::Call call_;
};

struct Scale : ModuleOf<Scale> {
  Scale(Slot slot, int num_parameters) : ModuleOf(std::move(slot)) {
    for (int i = 0; i < num_parameters; ++i) {
      weights.emplace_back(*this, std::to_string(i), std::vector<int64_t>{8}, Initializer::ones());
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (Parameter& weight : weights) x = x * weight.tensor;
    return x;
  }
  std::deque<Parameter> weights;
};

struct Chain : ModuleOf<Chain> {
  explicit Chain(int num_parameters) : ModuleOf(root()) {
    for (int i = 0; i < kNumUnits; ++i) units.emplace_back(child(std::to_string(i)), num_parameters);
  }
  at::Tensor forward(at::Tensor x) {
    x = x * 1;  // so that no unit's argument is a leaf
    for (Scale& unit : units) x = unit(x);
    return x;
  }
  std::deque<Scale> units;
};

template <class F>
void time_us(double& best, F&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  best = std::min(best, us / kNumUnits);
}

void print(const char* name, int num_parameters, double ours_us) {
  print_json_line({.bench = "fsdp_engine",
                   .name = str(name, ", ", num_parameters, " parameters a unit"),
                   .ours = ours_us,
                   .peer = kLimitUs,
                   .unit = "us/unit"});
}

void run(const ProcessGroup& group, int num_parameters) {
  Chain plain(num_parameters), sharded(num_parameters);
  materialize(plain, {});
  std::vector<Module*> units;
  for (Scale& unit : sharded.units) units.push_back(&unit);
  FullyShard engine(sharded, units, DeviceMesh(group, {group.size()}, {"fsdp"}));
  engine.materialize({});
  const at::Tensor x = at::ones({8}).requires_grad_(true);
  double best[4] = {1e9, 1e9, 1e9, 1e9};
  for (int i = 0; i < 300; ++i) {  // interleaved: the machine drifts
    time_us(best[0], [&] { plain(x).sum().backward(); });
    time_us(best[1], [&] {
      engine.zero_grad();
      sharded(x).sum().backward();
      engine.finish_backward();
    });
    at::NoGradGuard no_grad;
    time_us(best[2], [&] { plain(x); });
    time_us(best[3], [&] { sharded(x); });
  }
  print(group.size() == 1 ? "step, one rank" : "step", num_parameters, best[1] - best[0]);
  print(group.size() == 1 ? "evaluation, one rank" : "evaluation", num_parameters, best[3] - best[2]);
}

}  // namespace

int main() {
  const ProcessGroup null(std::make_shared<NullBackend>());
  const ProcessGroup solo(std::make_shared<detail::SoloBackend>(0, "solo", "thread"));
  for (const ProcessGroup& group : {null, solo}) {
    for (const int num_parameters : {1, 11}) run(group, num_parameters);
  }
}
