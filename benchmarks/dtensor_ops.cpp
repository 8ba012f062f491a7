// SPDX-License-Identifier: Apache-2.0
// What a DTensor op costs on the host beside the plain op, 10 x 10 f32 on a mesh of one rank (nothing communicates), best of 200 runs.
// `ours`: the DTensor op, `peer`: the plain op, `over_ns`: the difference. PyTorch's DTensor beside it: vs_pytorch/dtensor_ops.py.
//   bench_dtensor_ops               all cases, a JSON line each
//   bench_dtensor_ops CASE N        N calls of one case, for valgrind --tool=callgrind (the difference of two N)
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>

#include "benchmarks/json_line.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/dtensor/factories.h"

namespace {

using namespace hyper_parallel;
using Op = std::function<void()>;

struct Case {
  const char* name;
  Op ours, plain;  // no plain: nothing to compare with
};

template <class T>
void keep_alive(T&& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

double run_ns(const Op& op, int calls) {
  const auto start = std::chrono::steady_clock::now();
  for (int call = 0; call < calls; ++call) op();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / calls;
}

// Best of many short runs, the two sides in turn, so that a disturbed machine disturbs both.
std::pair<double, double> best_ns(const Case& one) {
  constexpr int kCalls = 2'000, kRuns = 200;
  double ours = 1e30, plain = 1e30;
  for (int run = 0; run < kRuns; ++run) {
    ours = std::min(ours, run_ns(one.ours, kCalls));
    if (one.plain) plain = std::min(plain, run_ns(one.plain, kCalls));
  }
  return {ours, plain};
}

std::vector<Case> make_cases(const DeviceMesh& mesh) {
  const Layout rows = Layout(mesh)("a"), columns = Layout(mesh)("", "a"), all(mesh), terms(mesh, {partial()});
  const at::Tensor t = at::ones({10, 10}), u = at::ones({10, 10}), tg = t.clone().requires_grad_();
  const DTensor s = from_local(t, rows), r = from_local(u, all), p = from_local(t.clone(), terms);
  const at::Tensor st = s, rt = r, rg = st.detach().requires_grad_(), sum = from_local(at::ones({10, 10}) * 0, rows),
                   plain_sum = at::ones({10, 10});
  const at::Tensor ones = at::ones({10, 10}), ones_d = from_local(ones, rows);
  return {
      {"detach", [=] { keep_alive(st.detach()); }, [=] { keep_alive(t.detach()); }},
      {"to_local", [=] { keep_alive(s.to_local()); }, {}},
      {"to_local_grad", [=, x = DTensor(rg)] { keep_alive(x.to_local()); }, {}},
      {"from_local", [=] { keep_alive(from_local(t, rows)); }, {}},
      {"from_local_grad", [=] { keep_alive(from_local(tg, rows)); }, {}},
      {"redistribute_S0_R", [=] { keep_alive(s.redistribute(all)); }, {}},
      {"redistribute_S0_S1", [=] { keep_alive(s.redistribute(columns)); }, {}},
      {"redistribute_R_S0", [=] { keep_alive(r.redistribute(rows)); }, {}},
      {"redistribute_P_R", [=] { keep_alive(p.redistribute(all)); }, {}},
      {"redistribute_S0_S0", [=] { keep_alive(s.redistribute(rows)); }, {}},
      {"add", [=] { keep_alive(at::add(st, st)); }, [=] { keep_alive(at::add(t, t)); }},
      {"add_forward_backward", [=] { keep_alive(torch::autograd::grad({rg + rg}, {rg}, {ones_d})); },
       [=] { keep_alive(torch::autograd::grad({tg + tg}, {tg}, {ones})); }},
      {"add_", [=] { sum.add_(st); }, [=] { plain_sum.add_(t); }},
      {"view", [=] { keep_alive(rt.view({100})); }, [=] { keep_alive(u.view({100})); }},
      {"mm", [=] { keep_alive(at::mm(rt, rt)); }, [=] { keep_alive(at::mm(u, u)); }},
      {"t", [=] { keep_alive(st.t()); }, [=] { keep_alive(t.t()); }},
      {"boxed_exp", [=] { keep_alive(at::exp(st)); }, [=] { keep_alive(at::exp(t)); }},
      {"boxed_maximum", [=] { keep_alive(at::maximum(st, st)); }, [=] { keep_alive(at::maximum(t, t)); }},
      {"boxed_softmax", [=] { keep_alive(at::softmax(rt, 1)); }, [=] { keep_alive(at::softmax(u, 1)); }},
      {"uniform_", [=] { rt.uniform_(); }, [=] { u.uniform_(); }},
      {"normal_", [=] { rt.normal_(); }, [=] { u.normal_(); }},
      {"bernoulli_", [=] { rt.bernoulli_(0.5); }, [=] { u.bernoulli_(0.5); }},
      {"randn_like", [=] { keep_alive(at::randn_like(rt)); }, [=] { keep_alive(at::randn_like(u)); }},
      {"native_dropout", [=] { keep_alive(at::native_dropout(rt, 0.1, true)); }, [=] { keep_alive(at::native_dropout(u, 0.1, true)); }},
  };
}

void print_case(const Case& one) {
  const auto [ours, plain] = best_ns(one);
  JsonLine line{.bench = "dtensor_ops", .name = one.name, .ours = ours / 1e3, .unit = "us"};
  if (one.plain) line.peer = plain / 1e3, line.over_ns = ours - plain;
  print_json_line(line);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const World world = World::single();
  const DeviceMesh mesh(world.group(), {1}, {"a"});
  const auto start = std::chrono::steady_clock::now();
  from_local(at::ones({10, 10}), Layout(mesh));  // registers the kernels, once per process
  const double first_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  if (argc == 1) print_json_line({.bench = "dtensor_ops", .name = "first_dtensor", .ours = first_ms, .unit = "ms"});
  for (const Case& one : make_cases(mesh)) {
    if (argc == 1)
      print_case(one);
    else if (std::strcmp(argv[1], one.name) == 0)
      for (int call = 0; call < (argc > 2 ? std::atoi(argv[2]) : 1); ++call) one.ours();
  }
  return 0;
}
