// SPDX-License-Identifier: Apache-2.0
// AdamW against torch.optim.AdamW, and independence of how parameters are cut.
#include "hyper_parallel/optim/adamw.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include <cmath>

#include "hyper_parallel/base/error.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using testing::HasSubstr;
using testing_support::message_of;

struct Reference {
  const char* name;
  at::ScalarType dtype;
  OptimizerOptions options;
  std::vector<double> learning_rates, start;
  std::vector<std::vector<double>> grads;
  std::vector<double> end, exp_avg, exp_avg_sq;
};
const std::vector<Reference>& references();  // at the end of the file

at::Tensor tensor_of(const std::vector<double>& values, at::ScalarType dtype) { return at::tensor(values, at::kDouble).to(dtype); }

OptimizerParameter parameter_of(const std::string& name, const at::Tensor& data, const at::Tensor& grad, bool decays = true,
                                int64_t begin = 0) {
  return {.name = name, .data = data, .grad = grad, .decays = decays, .sizes = {begin + data.numel()}, .begin = begin};
}

double difference(const at::Tensor& got, const std::vector<double>& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    worst = std::max(worst, std::abs(got.to(at::kDouble).const_data_ptr<double>()[i] - want[i]) / (1 + std::abs(want[i])));
  }
  return worst;
}

TEST(AdamW, EqualsPyTorch) {
  for (const Reference& reference : references()) {
    const at::Tensor data = tensor_of(reference.start, reference.dtype), grad = at::zeros_like(data);
    AdamW adamw({parameter_of("w", data, grad)}, reference.options);
    for (size_t step = 0; step < reference.grads.size(); ++step) {
      grad.copy_(tensor_of(reference.grads[step], reference.dtype));
      adamw.step({.learning_rate = reference.learning_rates[step]});
    }
    const double tolerance = reference.dtype == at::kDouble ? 1e-12 : 1e-6;
    const StateDict state = adamw.state_dict();
    EXPECT_LT(difference(data, reference.end), tolerance) << reference.name;
    EXPECT_LT(difference(state[1].local, reference.exp_avg), tolerance) << reference.name;
    EXPECT_LT(difference(state[2].local, reference.exp_avg_sq), tolerance) << reference.name;
    EXPECT_EQ(adamw.num_steps(), 3);
  }
}

// Cuts of every size, so that each element is in a vector body here and in a scalar tail there.
TEST(AdamW, BitsDoNotDependOnTheCut) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const int64_t numel = 1003;
    const at::Tensor start = at::randn({numel}, dtype), grad = at::randn({numel}, dtype).mul(0.1);
    const at::Tensor whole = start.clone();
    AdamW reference({parameter_of("w", whole, grad)}, {});
    for (int step = 0; step < 3; ++step) reference.step({.learning_rate = 0.01, .gradient_scale = 0.7});
    for (const int64_t size : {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 100, 501}) {
      const at::Tensor cut = start.clone();
      std::vector<OptimizerParameter> pieces;
      for (int64_t begin = 0; begin < numel; begin += size) {
        const int64_t length = std::min(size, numel - begin);
        pieces.push_back(parameter_of("w", cut.narrow(0, begin, length), grad.narrow(0, begin, length), true, begin));
      }
      AdamW adamw(std::move(pieces), {});
      for (int step = 0; step < 3; ++step) adamw.step({.learning_rate = 0.01, .gradient_scale = 0.7});
      EXPECT_TRUE(at::equal(cut, whole)) << size << " of " << c10::toString(dtype);
    }
  }
}

// Large enough for several threads, with ends of parameters, an empty one and both dtypes within a thread's range.
TEST(AdamW, BitsDoNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  const auto results = [](int num_threads) {
    at::manual_seed(4);
    at::set_num_threads(num_threads);
    std::vector<OptimizerParameter> parameters;
    std::vector<at::Tensor> all;
    for (const auto& [numel, dtype] : std::vector<std::pair<int64_t, at::ScalarType>>{
             {70'001, at::kFloat}, {0, at::kFloat}, {3, at::kDouble}, {50'000, at::kDouble}, {33, at::kFloat}, {100'003, at::kFloat}}) {
      all.push_back(at::randn({numel}, dtype));
      parameters.push_back(parameter_of("w" + std::to_string(all.size()), all.back(), at::randn({numel}, dtype), numel % 2 == 1));
    }
    AdamW adamw(std::move(parameters), {.weight_decay = 0.1});
    for (int step = 0; step < 3; ++step) adamw.step({.learning_rate = 0.01, .gradient_scale = 0.7});
    for (const StateEntry& entry : adamw.state_dict()) all.push_back(entry.local);
    return all;
  };
  const std::vector<at::Tensor> one = results(1);
  EXPECT_FALSE(at::equal(one[0], at::zeros_like(one[0])));
  for (const int num_threads : {2, 3, 8}) {
    const std::vector<at::Tensor> several = results(num_threads);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(several[i], one[i])) << i << " on " << num_threads << " threads";
  }
  at::set_num_threads(before);
}

TEST(AdamW, OnlyDecayingParametersShrink) {
  const at::Tensor decaying = at::ones({3}, at::kDouble), fixed = at::ones({3}, at::kDouble), grad = at::zeros({3}, at::kDouble);
  AdamW adamw({parameter_of("w", decaying, grad), parameter_of("norm", fixed, grad, false)}, {.weight_decay = 0.5});
  adamw.step({.learning_rate = 0.1});
  EXPECT_EQ(decaying.const_data_ptr<double>()[1], 1 - 0.1 * 0.5);
  EXPECT_EQ(fixed.const_data_ptr<double>()[1], 1.0);
}

TEST(AdamW, GradientScaleIsThatOfScaledGradients) {
  at::manual_seed(2);
  const at::Tensor a = at::randn({50}, at::kDouble), b = a.clone(), grad = at::randn({50}, at::kDouble);
  AdamW scaling({parameter_of("w", a, grad)}, {}), plain({parameter_of("w", b, grad.mul(0.25))}, {});
  scaling.step({.gradient_scale = 0.25});
  plain.step({});
  EXPECT_TRUE(at::equal(a, b));
}

TEST(AdamW, RestoredStateContinuesBitIdentically) {
  at::manual_seed(3);
  const at::Tensor a = at::randn({37}, at::kFloat), grad = at::randn({37}, at::kFloat);
  AdamW first({parameter_of("w", a, grad)}, {});
  for (int step = 0; step < 4; ++step) first.step({});
  const at::Tensor b = a.clone();
  AdamW second({parameter_of("w", b, grad)}, {});
  const StateDict from = first.state_dict(), to = second.state_dict();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(from[i].name, to[i].name);
    to[i].local.copy_(from[i].local);
  }
  first.step({});
  second.step({});
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_EQ(second.num_steps(), 5);
}

TEST(AdamW, StateNamesAndBoxes) {
  const at::Tensor data = at::zeros({5}), empty = at::zeros({0});
  AdamW adamw({{.name = "a.w", .data = data, .grad = data.clone(), .sizes = {4, 3}, .begin = 2}, parameter_of("b", empty, empty)}, {});
  adamw.step({});
  const StateDict state = adamw.state_dict();
  ASSERT_EQ(state.size(), 5u);
  EXPECT_EQ(state[0].name, "optimizer.step");
  EXPECT_EQ(state[1].name, "optimizer.exp_avg.a.w");
  EXPECT_EQ(state[2].name, "optimizer.exp_avg_sq.a.w");
  EXPECT_EQ(state[1].sizes, (std::vector<int64_t>{4, 3}));
  int64_t numel = 0;
  for (const Box& box : state[1].boxes) numel += box.numel();
  EXPECT_EQ(numel, 5);
  EXPECT_TRUE(state[3].boxes.empty());
}

TEST(AdamW, BadInput) {
  const at::Tensor data = at::zeros({4});
  const auto make = [&](OptimizerOptions options) { AdamW({parameter_of("w", data, data.clone())}, options); };
  EXPECT_THAT(message_of<ConfigError>([&] { make({.betas = {1.0, 0.9}}); }), HasSubstr("betas must be in [0, 1)"));
  EXPECT_THAT(message_of<ConfigError>([&] { make({.epsilon = -1}); }), HasSubstr("epsilon"));
  EXPECT_THAT(message_of<ConfigError>([&] { make({.weight_decay = NAN}); }), HasSubstr("weight_decay"));
  const at::Tensor half = at::zeros({4}, at::kBFloat16), square = at::zeros({2, 2});
  EXPECT_THAT(message_of<LayoutError>([&] { AdamW({parameter_of("w", half, half)}, {}); }), HasSubstr("allowed: f32, f64"));
  EXPECT_THAT(message_of<LayoutError>([&] { AdamW({parameter_of("w", square, square)}, {}); }), HasSubstr("1-d and contiguous"));
  EXPECT_THAT(message_of<LayoutError>([&] { AdamW({parameter_of("w", data, at::Tensor())}, {}); }), HasSubstr("gradient of w"));
}

TEST(OptimizerRegistry, NamesAndErrors) {
  std::vector<std::string> names;
  for (const OptimizerInfo& info : registered_optimizers()) names.push_back(info.name);
  EXPECT_THAT(names, testing::ElementsAre("adamw"));
  EXPECT_THAT(message_of<ConfigError>([] { make_optimizer("sgd", {}); }), HasSubstr("unknown optimizer 'sgd' (known: adamw)"));
  EXPECT_EQ(make_optimizer("adamw", {})->num_steps(), 0);
}

// clang-format off
// torch.optim.AdamW of torch 2.13 (foreach and fused off), three steps on seven random elements.
const std::vector<Reference>& references() {
  static const std::vector<Reference> all{
    {"f64", at::kDouble, {.betas = {0.9, 0.95}, .epsilon = 1e-08, .weight_decay = 0.1}, {0.001, 0.002, 0.0005},
     {0x1.8a7eb8902be3ap+0, -0x1.2c78a087c6feap-2, -0x1.16e2920a70ee5p+1, 0x1.23096ca3e350dp-1, -0x1.15a341987e136p+0, -0x1.660a590b74404p+0, 0x1.9d06f4be0cd62p-2},
     {{0x1.ad11c99ad2d18p-1, -0x1.70428781da237p-1, -0x1.9d0615c28c56fp-2, -0x1.317a30b4235d8p-1, 0x1.74cf8b7023054p-3, -0x1.b69e0d630b475p-1, 0x1.19c131e7df150p+0},
      {-0x1.123955c471384p+0, 0x1.f6959316295ecp-4, -0x1.21f45d35e3047p-1, 0x1.7e11c33de4300p-2, -0x1.c8b39c228f0eep-1, -0x1.8254e29955ebbp+0, 0x1.7b487141f6310p-2},
      {0x1.74dd5ad6b407cp+0, 0x1.e12ec3a63bfcdp-1, 0x1.8cb8fbf774e82p-1, 0x1.88f2d6a0ff4afp-3, 0x1.43880d161f421p+0, -0x1.4a59f475c30cdp+0, -0x1.950b696d074edp-1}},
     {0x1.8a24538462dabp+0, -0x1.2a5c4cecac36fp-2, -0x1.1667493216b55p+1, 0x1.239d7d148506cp-1, -0x1.1586d3b18439ep+0, -0x1.650931335091bp+0, 0x1.99f3c247de46ap-2},
     {0x1.dfbcec71deb5cp-4, 0x1.7f17b75a69641p-5, -0x1.9357a71c969c6p-8, 0x1.22f76844f91bbp-8, 0x1.f270e5d607c4cp-5, -0x1.5646a41ecc797p-2, 0x1.63520d8c3bc2fp-5},
     {0x1.89c1d7b55b209p-3, 0x1.176fcd13b03bbp-4, 0x1.aedb22547d2c4p-5, 0x1.91ae7df1657fep-6, 0x1.e8078ae9b1d01p-4, 0x1.cbe3604402c6ap-3, 0x1.7ac1d502caf41p-4}},
    {"f64 without decay", at::kDouble, {.betas = {0.8, 0.999}, .epsilon = 1e-06, .weight_decay = 0.0}, {0.01, 0.01, 0.01},
     {-0x1.5616db6b3a29dp-6, -0x1.6fdc9db987b3ep-1, 0x1.098ac1867f35fp-1, -0x1.50017076004bep+0, 0x1.8934b654f23dcp-3, 0x1.15e6205661fa6p-1, -0x1.1c00f65f71c57p+1},
     {{0x1.0f90a22a57a0cp-12, -0x1.0dee24c854b3ap-10, -0x1.068aa808ea94dp-11, 0x1.1ea597f0d3c56p-12, -0x1.e1594ae2d155ep-11, -0x1.53139fd7a1f72p-15, 0x1.2e1cc59526763p-12},
      {-0x1.f9d1f6fe72b7cp-18, -0x1.df75807c65661p-11, -0x1.1d5d9cbfc6018p-10, -0x1.178be68cc8e7fp-12, 0x1.8d3ff235a315ap-13, -0x1.cb52f9edc0306p-13, 0x1.0db14e6ebf65fp-9},
      {-0x1.2923ea19efc7fp-15, 0x1.070fd49a0f420p-14, -0x1.91c3e354fa093p-11, 0x1.20297439da72ap-10, 0x1.694e13ced3851p-9, 0x1.6f988471937cdp-13, -0x1.e862a5478217ap-11}},
     {-0x1.4975d04585325p-5, -0x1.622d53ec62fbdp-1, 0x1.18a3f43d5399bp-1, -0x1.53f5617cb000ep+0, 0x1.9b6ea9610b070p-3, 0x1.1fbbfef6f5085p-1, -0x1.1ebe8769bd637p+1},
     {0x1.a1137e31c7cb0p-16, -0x1.167a62fb68bf7p-12, -0x1.9a8cfebfc6ba0p-12, 0x1.bcfc5dbd09b62p-13, 0x1.e6a4864c71916p-12, -0x1.5a5751a04ade4p-18, 0x1.790baa585ca5cp-13},
     {0x1.2c2b180cfcef2p-34, 0x1.04ccae3cd28fbp-29, 0x1.15ce9b7763e88p-29, 0x1.742ab07b2ac11p-30, 0x1.2337ea284905fp-27, 0x1.6110d66b63758p-34, 0x1.63f7f706ef3f9p-28}},
    {"f32", at::kFloat, {.betas = {0.9, 0.95}, .epsilon = 1e-08, .weight_decay = 0.1}, {0.001, 0.002, 0.0005},
     {-0x1.8167c60000000p+0, -0x1.526c4e0000000p-1, 0x1.52bd580000000p+0, 0x1.300a560000000p-5, -0x1.23bf440000000p-2, -0x1.1149e80000000p-3, 0x1.e495c80000000p+0},
     {{0x1.8e36b20000000p+1, -0x1.d565b60000000p-2, -0x1.580d420000000p-2, -0x1.91ea9c0000000p+0, 0x1.3b439c0000000p+0, 0x1.6506960000000p+0, 0x1.2bcd5e0000000p+0},
      {0x1.bbea8e0000000p-2, -0x1.bbf7d20000000p+0, -0x1.5607480000000p+0, 0x1.c631740000000p-1, 0x1.8931b80000000p-1, 0x1.d3dea40000000p-5, 0x1.caaab20000000p-3},
      {0x1.1a9b100000000p-1, -0x1.2858360000000p-1, 0x1.225bf20000000p-6, 0x1.0dfafa0000000p-3, 0x1.050f700000000p+0, -0x1.c990220000000p-2, 0x1.cedefa0000000p-2}},
     {-0x1.8203be0000000p+0, -0x1.50ac3e0000000p-1, 0x1.5369720000000p+0, 0x1.3c35460000000p-5, -0x1.2726f80000000p-2, -0x1.167a980000000p-3, 0x1.e3a4360000000p+0},
     {0x1.62841c0000000p-2, -0x1.011e5c0000000p-2, -0x1.2a5e0e0000000p-3, -0x1.17bcb40000000p-5, 0x1.15583c0000000p-2, 0x1.2cbbf60000000p-4, 0x1.4820440000000p-3},
     {0x1.d7f7e80000000p-2, 0x1.5a4e300000000p-3, 0x1.70396c0000000p-4, 0x1.32200c0000000p-3, 0x1.3004780000000p-3, 0x1.9106180000000p-4, 0x1.3119060000000p-4}},
  };
  return all;
}
// clang-format on

}  // namespace
}  // namespace hyper_parallel
