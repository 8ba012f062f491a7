// SPDX-License-Identifier: Apache-2.0
// Every op's value and gradients under every placement of its inputs, uneven and empty shards included, equal the plain op's on one rank.
#include <ATen/ops/_softmax.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>

#include "tests/shard/support/compare.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
class OpTest : public testing::TestWithParam<OpCase> {};

TEST_P(OpTest, OneAxis) {
  compare_everywhere(GetParam(), {2});
  compare_everywhere(GetParam(), {3});
}
TEST_P(OpTest, TwoAxes) { compare_everywhere(GetParam(), {2, 2}, 7); }

const std::vector<OpCase> kPointwise{
    {"add", [](const Tensors& t) { return t[0] + t[1]; }, {{5, 4}, {5, 4}}},
    {"add_broadcast", [](const Tensors& t) { return t[0] + t[1]; }, {{5, 4}, {4}}},
    {"add_row", [](const Tensors& t) { return at::add(t[0], t[1], 3); }, {{5, 4}, {5, 1}}},
    {"sub", [](const Tensors& t) { return t[0] - t[1] * 2; }, {{3, 4}, {3, 4}}},
    {"scalars", [](const Tensors& t) { return (t[0] * 3 + 1) / 2 - 5; }, {{3, 4}}},
    {"rsub", [](const Tensors& t) { return 1 - t[0]; }, {{3, 4}}},
    {"mul", [](const Tensors& t) { return t[0] * t[1]; }, {{5, 4}, {5, 4}}},
    {"square", [](const Tensors& t) { return t[0] * t[0]; }, {{5, 4}}},
    {"div", [](const Tensors& t) { return t[0] / t[1]; }, {{5, 4}, {5, 1}}},
    {"exp_log", [](const Tensors& t) { return at::exp(t[0]) + at::log(t[0]); }, {{5, 4}}},
    {"pow", [](const Tensors& t) { return at::pow(t[0], 3) + at::rsqrt(t[0]); }, {{5, 4}}},
    {"relu", [](const Tensors& t) { return at::relu(t[0] - 0.7); }, {{5, 4}}},
    {"silu_gelu", [](const Tensors& t) { return at::silu(t[0]) + at::gelu(t[0]); }, {{5, 4}}},
    {"sigmoid_tanh", [](const Tensors& t) { return at::sigmoid(t[0]) * at::tanh(t[0]); }, {{5, 4}}},
    {"clamp_maximum", [](const Tensors& t) { return at::maximum(at::clamp(t[0], 0.4, 0.9), t[1]); }, {{5, 4}, {5, 4}}},
    {"where", [](const Tensors& t) { return at::where(t[0] > 0.8, t[0], t[1]); }, {{5, 4}, {5, 4}}},
    {"lerp_addcmul", [](const Tensors& t) { return at::lerp(t[0], t[1], 0.3) + at::addcmul(t[0], t[1], t[1], 2); }, {{5, 4}, {5, 4}}},
    {"to_float", [](const Tensors& t) { return t[0].to(at::kFloat).to(at::kDouble); }, {{5, 4}}},
};
const std::vector<OpCase> kMatmul{
    {"mm", [](const Tensors& t) { return at::mm(t[0], t[1]); }, {{5, 4}, {4, 3}}},
    {"mm_transposed", [](const Tensors& t) { return at::mm(t[0].t(), t[1]); }, {{4, 5}, {4, 3}}},
    {"bmm", [](const Tensors& t) { return at::bmm(t[0], t[1]); }, {{3, 2, 4}, {3, 4, 5}}},
    {"addmm", [](const Tensors& t) { return at::addmm(t[0], t[1], t[2]); }, {{3}, {5, 4}, {4, 3}}},
    {"linear", [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }, {{2, 3, 4}, {5, 4}, {5}}},
    {"linear_2d", [](const Tensors& t) { return at::linear(t[0], t[1]); }, {{3, 4}, {5, 4}}},
    {"matmul_3d_2d", [](const Tensors& t) { return at::matmul(t[0], t[1]); }, {{2, 3, 4}, {4, 5}}},
    {"matmul_broadcast", [](const Tensors& t) { return at::matmul(t[0], t[1]); }, {{2, 3, 2, 4}, {3, 4, 2}}},
    {"matmul_vector", [](const Tensors& t) { return at::matmul(t[0], t[1]); }, {{3, 4}, {4}}},
    {"softmax", [](const Tensors& t) { return at::softmax(t[0], -1); }, {{5, 4}}},
    {"log_softmax", [](const Tensors& t) { return at::log_softmax(t[0], 0); }, {{5, 4}}},
};
const std::vector<OpCase> kReductions{
    {"sum", [](const Tensors& t) { return t[0].sum(); }, {{5, 4}}},
    {"sum_dim", [](const Tensors& t) { return t[0].sum({0}); }, {{5, 4}}},
    {"sum_keep", [](const Tensors& t) { return t[0].sum({1}, true) * t[0]; }, {{5, 4}}},
    {"mean", [](const Tensors& t) { return t[0].mean() * t[0].mean({1}); }, {{5, 4}}},
    {"mean_two",
     [](const Tensors& t) {
       return t[0].mean({0, 2}, true);
     },
     {{5, 4, 2}}},
    {"amax",
     [](const Tensors& t) {
       return at::amax(t[0], {1}) + at::amax(t[0], {0, 1});
     },
     {{5, 4}}},
    {"vector_norm", [](const Tensors& t) { return at::linalg_vector_norm(t[0]); }, {{5, 4}}},
    {"vector_norm_dim", [](const Tensors& t) { return at::linalg_vector_norm(t[0], 3, {1}, true); }, {{5, 4}}},
    {"layer_norm", [](const Tensors& t) { return at::layer_norm(t[0], {4}, t[1], t[2]); }, {{5, 4}, {4}, {4}}},
    {"rms_norm", [](const Tensors& t) { return at::rms_norm(t[0], {4}, t[1], 1e-6); }, {{2, 3, 4}, {4}}},
};
const std::vector<OpCase> kViews{
    {"view_merge",
     [](const Tensors& t) {
       return t[0].view({6, 4});
     },
     {{2, 3, 4}}},
    {"view_split",
     [](const Tensors& t) {
       return t[0].view({3, 4, 2});
     },
     {{3, 8}}},
    {"view_ones",
     [](const Tensors& t) {
       return t[0].view({3, 1, 8, 1});
     },
     {{3, 8}}},
    {"reshape", [](const Tensors& t) { return t[0].transpose(0, 1).reshape({24}); }, {{3, 8}}},
    {"transpose",
     [](const Tensors& t) {
       return t[0].transpose(1, 2).permute({2, 0, 1});
     },
     {{2, 3, 4}}},
    {"squeeze", [](const Tensors& t) { return t[0].unsqueeze(1).squeeze(0).squeeze(1).unsqueeze(-1).squeeze(); }, {{2, 3}}},
    {"expand",
     [](const Tensors& t) {
       return t[0].expand({3, 2, 4}) * 2;
     },
     {{2, 1}}},
    {"select_slice", [](const Tensors& t) { return t[0].select(1, 2) + t[0].slice(1, 1, 3).sum({1}); }, {{5, 4}}},
    {"split_unbind", [](const Tensors& t) { return t[0].split(3, 1)[1] * t[0].unbind(1)[0].unsqueeze(1); }, {{5, 4}}},
    {"cat_stack",
     [](const Tensors& t) {
       return at::cat({t[0], t[1]}, 1).sum({1}) + at::stack({t[0], t[1]}, 1).sum({1, 2});
     },
     {{5, 4}, {5, 4}}},
    {"contiguous", [](const Tensors& t) { return t[0].t().contiguous().clone(); }, {{5, 4}}},
};
std::string name_of_case(const testing::TestParamInfo<OpCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Pointwise, OpTest, testing::ValuesIn(kPointwise), name_of_case);
INSTANTIATE_TEST_SUITE_P(Matmul, OpTest, testing::ValuesIn(kMatmul), name_of_case);
INSTANTIATE_TEST_SUITE_P(Reductions, OpTest, testing::ValuesIn(kReductions), name_of_case);
INSTANTIATE_TEST_SUITE_P(Views, OpTest, testing::ValuesIn(kViews), name_of_case);

}  // namespace
}  // namespace hyper_parallel
