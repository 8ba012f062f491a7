// SPDX-License-Identifier: Apache-2.0
// One or more ops of every family of rules: values and gradients under every placement of the inputs equal the plain op's on one rank.
#include <ATen/core/Reduction.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/addmv.h>
#include <ATen/ops/addr.h>
#include <ATen/ops/all.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/any.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/atan2.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cdist.h>
#include <ATen/ops/celu.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clip.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv_transpose1d.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/diag_embed.h>
#include <ATen/ops/diagonal_scatter.h>
#include <ATen/ops/digamma.h>
#include <ATen/ops/div.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/fft_rfft.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/fmax.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/hypot.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_fill.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/instance_norm.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/isposinf.h>
#include <ATen/ops/kthvalue.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/lgamma.h>
#include <ATen/ops/linalg_cholesky.h>
#include <ATen/ops/linalg_cross.h>
#include <ATen/ops/linalg_det.h>
#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/linalg_inv.h>
#include <ATen/ops/linalg_matrix_exp.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_slogdet.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logcumsumexp.h>
#include <ATen/ops/logit.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/median.h>
#include <ATen/ops/min.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/mvlgamma.h>
#include <ATen/ops/nansum.h>
#include <ATen/ops/nll_loss2d.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/permute_copy.h>
#include <ATen/ops/polygamma.h>
#include <ATen/ops/prelu.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/reflection_pad1d.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/replication_pad1d.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/scatter_reduce.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/select_scatter.h>
#include <ATen/ops/selu.h>
#include <ATen/ops/signbit.h>
#include <ATen/ops/slice_scatter.h>
#include <ATen/ops/smooth_l1_loss.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/special_chebyshev_polynomial_t.h>
#include <ATen/ops/special_i0e.h>
#include <ATen/ops/square.h>
#include <ATen/ops/std.h>
#include <ATen/ops/take.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/var.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/view_copy.h>
#include <ATen/ops/xlogy.h>

#include "tests/shard/support/compare.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;

// Whole numbers below `count` from inputs in [0.3, 1.3).
at::Tensor index_of(const at::Tensor& values, int64_t count) {
  return ((values.detach() - 0.3) * double(count)).floor().clamp(0, count - 1).to(at::kLong);
}
at::Tensor positive_definite(const at::Tensor& values) {
  return at::matmul(values, values.transpose(-2, -1)) + 3 * (values * 0 + 1).detach().tril().triu();
}

class FamilyTest : public testing::TestWithParam<OpCase> {};
TEST_P(FamilyTest, OneAxis) {
  compare_everywhere(GetParam(), {2}, 1);
  compare_everywhere(GetParam(), {3}, 3);
}
TEST_P(FamilyTest, TwoAxes) {
  compare_everywhere(GetParam(), {2, 2}, GetParam().shapes.size() > 2 ? 131 : GetParam().shapes.size() > 1 ? 11 : 3);
}

const std::vector<OpCase> kIndexing{
    {"gather", [](const Tensors& t) { return at::gather(t[0], 1, index_of(t[1], 4)); }, {{3, 4}, {3, 5}}},
    {"gather_first", [](const Tensors& t) { return at::gather(t[0], 0, index_of(t[1], 5)); }, {{5, 4}, {2, 3}}},
    {"scatter", [](const Tensors& t) { return at::scatter(t[0], 1, index_of(t[1], 4), t[1]); }, {{3, 4}, {3, 1}}},
    {"scatter_add", [](const Tensors& t) { return at::scatter_add(t[0], 1, index_of(t[1], 4), t[1]); }, {{3, 4}, {3, 5}}},
    {"scatter_value", [](const Tensors& t) { return at::scatter(t[0], 0, index_of(t[1], 5), 2.5); }, {{5, 3}, {2, 3}}},
    {"scatter_reduce",
     [](const Tensors& t) { return at::scatter_reduce(t[0], 1, index_of(t[1], 4), t[1], "amax", true); },
     {{3, 4}, {3, 5}},
     false},
    {"index_select", [](const Tensors& t) { return at::index_select(t[0], 1, index_of(t[1], 4)); }, {{3, 4}, {5}}},
    {"index_add", [](const Tensors& t) { return at::index_add(t[0], 0, index_of(t[1].sum({1}) / 4, 5), t[1], 2); }, {{5, 4}, {3, 4}}},
    {"index_copy",
     [](const Tensors& t) { return at::index_copy(t[0], 1, index_of(t[1].sum({0}).slice(0, 0, 1) / 3, 4), t[1].slice(1, 0, 1)); },
     {{3, 4}, {3, 2}}},
    {"index_fill", [](const Tensors& t) { return at::index_fill(t[0], 1, index_of(t[1], 4), 3.5); }, {{3, 4}, {2}}},
    {"index", [](const Tensors& t) { return at::index(t[0], {index_of(t[1], 3)}); }, {{3, 4}, {2, 2}}},
    {"index_two",
     [](const Tensors& t) {
       return at::index(t[0], {std::nullopt, index_of(t[1], 4), index_of(t[1], 2)});
     },
     {{3, 4, 2}, {3}}},
    {"index_apart",
     [](const Tensors& t) {
       return at::index(t[0], {index_of(t[1], 3), std::nullopt, index_of(t[1], 2)});
     },
     {{3, 4, 2}, {3}}},
    {"index_put",
     [](const Tensors& t) {
       return at::index_put(t[0], {std::nullopt, index_of(t[1], 4).slice(0, 0, 1)}, t[1].slice(0, 0, 1));
     },
     {{3, 4}, {2}}},
    {"index_accumulate",
     [](const Tensors& t) { return at::index_put(t[0], {index_of(t[1].sum({1}) / 4, 3)}, t[1], true); },
     {{3, 4}, {5, 4}}},
    {"mask", [](const Tensors& t) { return at::index(t[0], {t[0] > 0.8}) * 2; }, {{3, 4}}},
    {"masked_select", [](const Tensors& t) { return at::masked_select(t[0], t[1] > 0.8) * 2; }, {{3, 4}, {3, 4}}},
    {"mask_put", [](const Tensors& t) { return at::index_put(t[0], {t[0] > 0.8}, t[1].sum() * 0.1); }, {{3, 4}, {2}}},
    {"embedding", [](const Tensors& t) { return at::embedding(t[0], index_of(t[1], 5)); }, {{5, 4}, {2, 3}}},
    {"take", [](const Tensors& t) { return at::take(t[0], index_of(t[1], 12)); }, {{3, 4}, {2, 3}}},
    {"masked_fill", [](const Tensors& t) { return at::masked_fill(t[0], t[1] > 0.8, 0.5); }, {{3, 4}, {3, 4}}},
    {"nonzero", [](const Tensors& t) { return at::nonzero(t[0] > 0.8); }, {{3, 4}}, false},
    {"searchsorted", [](const Tensors& t) { return at::searchsorted(std::get<0>(t[0].sort()), t[1]); }, {{3, 4}, {3, 2}}, false},
    {"isin", [](const Tensors& t) { return at::isin(index_of(t[0], 9), index_of(t[1], 9)); }, {{3, 4}, {2}}, false},
};
const std::vector<OpCase> kSorting{
    {"topk", [](const Tensors& t) { return std::get<0>(at::topk(t[0], 2, 1)); }, {{5, 4}}},
    {"topk_index", [](const Tensors& t) { return std::get<1>(at::topk(t[0], 2, 0)); }, {{5, 4}}, false},
    {"sort", [](const Tensors& t) { return std::get<0>(at::sort(t[0], 1, true)); }, {{5, 4}}},
    {"argsort", [](const Tensors& t) { return at::argsort(t[0], int64_t{0}); }, {{5, 4}}, false},
    {"cumsum", [](const Tensors& t) { return at::cumsum(t[0], 0) + at::cumsum(t[0], 1); }, {{5, 4}}},
    {"cumprod", [](const Tensors& t) { return at::cumprod(t[0], 1); }, {{5, 4}}},
    {"logcumsumexp", [](const Tensors& t) { return at::logcumsumexp(t[0], 1); }, {{5, 4}}},
    {"cummax", [](const Tensors& t) { return std::get<0>(at::cummax(t[0], 1)); }, {{5, 4}}},
    {"kthvalue", [](const Tensors& t) { return std::get<0>(at::kthvalue(t[0], 2, 1)); }, {{5, 4}}},
    {"max_dim", [](const Tensors& t) { return std::get<0>(at::max(t[0], 1)) + std::get<0>(at::min(t[0], 1)); }, {{5, 4}}},
    {"median", [](const Tensors& t) { return std::get<0>(at::median(t[0], 0)) * t[0].median(); }, {{5, 4}}},
    {"argmax", [](const Tensors& t) { return at::argmax(t[0], 1) + at::argmin(t[0]); }, {{5, 4}}, false},
    {"bucketize", [](const Tensors& t) { return at::bucketize(t[0], std::get<0>(t[1].sort())); }, {{5, 4}, {3}}, false},
};
const std::vector<OpCase> kReductions{
    {"var",
     [](const Tensors& t) {
       return at::var(t[0], {1}, 1, false) + at::std(t[0], {0, 1}, 1, false);
     },
     {{5, 4}}},
    {"var_mean",
     [](const Tensors& t) { return std::get<0>(at::var_mean(t[0], {0}, 1, true)) * std::get<1>(at::var_mean(t[0], {0}, 1, true)); },
     {{5, 4}}},
    {"logsumexp", [](const Tensors& t) { return at::logsumexp(t[0], {1}); }, {{5, 4}}},
    {"prod", [](const Tensors& t) { return at::prod(t[0], 1) * at::prod(t[0]); }, {{5, 4}}},
    {"any_all",
     [](const Tensors& t) { return at::any(t[0] > 1.1, 1).logical_or(at::all(t[0] > 0.5)).logical_xor(at::any(t[0] > 5)); },
     {{5, 4}},
     false},
    {"max_min", [](const Tensors& t) { return at::max(t[0]) * at::min(t[0]); }, {{5, 4}}},
    {"nansum", [](const Tensors& t) { return at::nansum(at::log(t[0] - 0.5), {1}); }, {{5, 4}}, false},
    {"norm", [](const Tensors& t) { return at::norm(t[0], 3) * at::norm(t[0]); }, {{5, 4}}},
    {"count_nonzero",
     [](const Tensors& t) { return at::count_nonzero(t[0] > 0.8, at::IntArrayRef{1}) + at::count_nonzero(t[0] > 0.8); },
     {{5, 4}},
     false},
    {"histc", [](const Tensors& t) { return at::histc(t[0], 4, 0, 2) + at::histc(t[0], 4); }, {{5, 4}}, false},
    {"aminmax", [](const Tensors& t) { return std::get<0>(at::aminmax(t[0])) * std::get<1>(at::aminmax(t[0])); }, {{5, 4}}},
};
const std::vector<OpCase> kLosses{
    {"mse", [](const Tensors& t) { return at::mse_loss(t[0], t[1]); }, {{5, 4}, {5, 4}}},
    {"mse_sum", [](const Tensors& t) { return at::mse_loss(t[0], t[1], at::Reduction::Sum); }, {{5, 4}, {5, 4}}},
    {"mse_none", [](const Tensors& t) { return at::mse_loss(t[0], t[1], at::Reduction::None); }, {{5, 4}, {5, 4}}},
    {"smooth_huber", [](const Tensors& t) { return at::smooth_l1_loss(t[0], t[1]) + at::huber_loss(t[0], t[1] * 3); }, {{5, 4}, {5, 4}}},
    {"cross_entropy_bce", [](const Tensors& t) { return at::binary_cross_entropy(t[0] / 2, t[1] / 2); }, {{5, 4}, {5, 4}}},
    {"bce_logits", [](const Tensors& t) { return at::binary_cross_entropy_with_logits(t[0], t[1]); }, {{5, 4}, {5, 4}}},
    {"cross_entropy", [](const Tensors& t) { return at::cross_entropy_loss(t[0], index_of(t[1], 4)); }, {{5, 4}, {5}}},
    {"cross_entropy_ignore",
     [](const Tensors& t) { return at::cross_entropy_loss(t[0], index_of(t[1], 4), t[0].detach().sum({0}), at::Reduction::Mean, 1); },
     {{5, 4}, {5}}},
    {"cross_entropy_sum",
     [](const Tensors& t) { return at::cross_entropy_loss(t[0], index_of(t[1], 4), {}, at::Reduction::Sum); },
     {{5, 4}, {5}}},
    {"cross_entropy_none",
     [](const Tensors& t) { return at::cross_entropy_loss(t[0], index_of(t[1], 4), {}, at::Reduction::None); },
     {{5, 4}, {5}}},
    {"cross_entropy_smooth",
     [](const Tensors& t) { return at::cross_entropy_loss(t[0], index_of(t[1], 4), {}, at::Reduction::Mean, -100, 0.1); },
     {{5, 4}, {5}}},
    {"nll_2d", [](const Tensors& t) { return at::nll_loss2d(at::log_softmax(t[0], 1), index_of(t[1], 3)); }, {{2, 3, 2, 2}, {2, 2, 2}}},
};
const std::vector<OpCase> kConvolution{
    {"conv1d", [](const Tensors& t) { return at::conv1d(t[0], t[1], t[2], 1, 1); }, {{3, 2, 5}, {4, 2, 3}, {4}}},
    {"conv2d_stride", [](const Tensors& t) { return at::conv2d(t[0], t[1], std::nullopt, 2); }, {{2, 3, 5, 5}, {2, 3, 3, 3}}},
    {"conv_groups", [](const Tensors& t) { return at::conv1d(t[0], t[1], std::nullopt, 1, 1, 1, 2); }, {{2, 4, 5}, {4, 2, 3}}},
    {"conv_transposed", [](const Tensors& t) { return at::conv_transpose1d(t[0], t[1], std::nullopt, 2); }, {{2, 3, 4}, {3, 2, 3}}},
    {"pools",
     [](const Tensors& t) {
       return at::max_pool2d(t[0], 2) + at::avg_pool2d(t[0], 2) + at::adaptive_avg_pool2d(t[0], {2, 2});
     },
     {{3, 2, 4, 4}}},
    {"upsample",
     [](const Tensors& t) {
       return at::upsample_nearest2d(t[0], {6, 6}) + at::upsample_bilinear2d(t[0], {6, 6}, false);
     },
     {{3, 2, 3, 3}}},
    {"grid_sample", [](const Tensors& t) { return at::grid_sampler(t[0], t[1] - 0.8, 0, 0, false); }, {{2, 3, 4, 4}, {2, 3, 3, 2}}},
    {"pad_reflect",
     [](const Tensors& t) {
       return at::reflection_pad1d(t[0], {1, 2}) * at::replication_pad1d(t[0], {1, 2});
     },
     {{2, 3, 4}}},
};
const std::vector<OpCase> kAttention{
    {"sdpa",
     [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2]); },
     {{2, 3, 4, 5}, {2, 3, 6, 5}, {2, 3, 6, 5}},
     true,
     false},
    {"sdpa_causal",
     [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[1] * 2, {}, 0, true); },
     {{2, 3, 4, 5}, {2, 3, 4, 5}},
     true,
     false},
    {"sdpa_mask",
     [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[0], t[0], t[1].detach()); },
     {{2, 3, 4, 5}, {4, 4}},
     true,
     false},
};
const std::vector<OpCase> kNorms{
    {"group_norm", [](const Tensors& t) { return at::group_norm(t[0], 2, t[1], t[1] * 2); }, {{3, 4, 2}, {4}}},
    {"batch_norm", [](const Tensors& t) { return at::batch_norm(t[0], t[1], t[1] * 2, {}, {}, true, 0.1, 1e-5, false); }, {{3, 4, 2}, {4}}},
    {"batch_norm_eval",
     [](const Tensors& t) { return at::batch_norm(t[0], t[1], t[1] * 2, t[1].detach() * 3, t[1].detach(), false, 0.1, 1e-5, false); },
     {{3, 4, 2}, {4}}},
    {"instance_norm", [](const Tensors& t) { return at::instance_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-5, false); }, {{3, 2, 4}}},
};
const std::vector<OpCase> kMatrices{
    {"inverse_det",
     [](const Tensors& t) {
       return at::linalg_inv(positive_definite(t[0])) * at::linalg_det(positive_definite(t[0])).unsqueeze(-1).unsqueeze(-1);
     },
     {{3, 2, 2}}},
    {"cholesky", [](const Tensors& t) { return at::linalg_cholesky(positive_definite(t[0])); }, {{3, 2, 2}}},
    {"solve", [](const Tensors& t) { return at::linalg_solve(positive_definite(t[0]), t[1]); }, {{3, 2, 2}, {3, 2, 4}}},
    {"solve_broadcast",
     [](const Tensors& t) { return at::linalg_solve_triangular(positive_definite(t[0]), t[1], true); },
     {{2, 2}, {3, 2, 4}}},
    {"slogdet_eigh",
     [](const Tensors& t) {
       return std::get<1>(at::linalg_slogdet(positive_definite(t[0]))) + at::linalg_eigvalsh(positive_definite(t[0])).sum({-1});
     },
     {{3, 2, 2}}},
    {"singular_values", [](const Tensors& t) { return at::linalg_svdvals(t[0]); }, {{3, 2, 4}}},
    {"qr", [](const Tensors& t) { return std::get<1>(at::linalg_qr(t[0])); }, {{3, 3, 2}}},
    {"matrix_exp", [](const Tensors& t) { return at::linalg_matrix_exp(t[0]); }, {{3, 2, 2}}},
    {"cross", [](const Tensors& t) { return at::linalg_cross(t[0], t[1]); }, {{4, 3}, {4, 3}}},
    {"fft", [](const Tensors& t) { return at::view_as_real(at::fft_rfft(t[0])); }, {{3, 4}}, false},
    {"addmv_addr",
     [](const Tensors& t) { return at::addr(t[0], at::mv(t[0], t[1]), t[1]) + at::addmv(t[1].sum(), t[0], t[1]).unsqueeze(1); },
     {{3, 4}, {4}}},
    {"cdist", [](const Tensors& t) { return at::cdist(t[0], t[1]); }, {{3, 4}, {5, 4}}, false},
};
const std::vector<OpCase> kShapes{
    {"pad",
     [](const Tensors& t) {
       return at::constant_pad_nd(t[0], {1, 2}) + at::constant_pad_nd(t[0], {0, 3}, 2.0);
     },
     {{5, 4}}},
    {"repeat",
     [](const Tensors& t) {
       return t[0].repeat({2, 1, 3});
     },
     {{5, 4}}},
    {"flip_roll", [](const Tensors& t) { return at::flip(t[0], {1}) * at::roll(t[0], 2, 0) + at::roll(t[0], 3); }, {{5, 4}}},
    {"tril_triu", [](const Tensors& t) { return at::tril(t[0]) + at::triu(t[0], 1) * 2; }, {{3, 4, 4}}},
    {"diagonal", [](const Tensors& t) { return t[0].diagonal(1, 1, 2) * 2; }, {{3, 4, 4}}},
    {"diag_embed", [](const Tensors& t) { return at::diag_embed(t[0], 1); }, {{3, 4}}},
    {"scatters",
     [](const Tensors& t) {
       return at::select_scatter(t[0], t[1], 1, 2) + at::slice_scatter(t[0], t[1].unsqueeze(1), 1, 0, 1) +
              at::diagonal_scatter(t[0], t[1].slice(0, 0, 4), 0);
     },
     {{5, 4}, {5}}},
    {"unfold", [](const Tensors& t) { return t[0].unfold(1, 2, 1) * 2; }, {{3, 4}}},
    {"split_uneven",
     [](const Tensors& t) {
       return at::cat({t[0].split(2, 0)[1], t[0].split_with_sizes({1, 4}, 0)[1]}, 0);
     },
     {{5, 4}}},
    {"chunk_unflatten",
     [](const Tensors& t) {
       return t[0].chunk(2, 1)[0] * t[0].unflatten(1, {2, 2}).sum({2});
     },
     {{5, 4}}},
    {"flatten", [](const Tensors& t) { return t[0].flatten() * 2; }, {{5, 3, 2}}},
    {"repeat_interleave", [](const Tensors& t) { return at::repeat_interleave(t[0], 2, 1); }, {{5, 4}}},
    {"view_copy",
     [](const Tensors& t) {
       return at::view_copy(t[0], {4, 5}) + at::permute_copy(t[0], {1, 0});
     },
     {{5, 4}},
     false},
    {"meshgrid_einsum",
     [](const Tensors& t) {
       return at::einsum("ij,kj->ik", {t[0], t[1]});
     },
     {{3, 4}, {5, 4}}},
};
const std::vector<OpCase> kElementwise{
    {"special",
     [](const Tensors& t) {
       return at::lgamma(t[0]) + at::erfinv(t[0] / 2) + at::special_i0e(t[0]) + at::logit(t[0] / 2) + at::digamma(t[0]);
     },
     {{5, 4}}},
    {"two",
     [](const Tensors& t) {
       return at::atan2(t[0], t[1]) + at::hypot(t[0], t[1]) + at::logaddexp(t[0], t[1]) + at::fmax(t[0], t[1]) + at::xlogy(t[0], t[1]);
     },
     {{5, 4}, {4}}},
    {"activations",
     [](const Tensors& t) {
       return at::elu(t[0] - 1) + at::softplus(t[0]) + at::mish(t[0]) + at::hardtanh(t[0] - 1) + at::leaky_relu(t[0] - 1) +
              at::hardsigmoid(t[0]) + at::selu(t[0] - 1) + at::celu(t[0] - 1) + at::log_sigmoid(t[0]) +
              at::prelu(t[0] - 1, t[1].slice(0, 0, 1));
     },
     {{5, 4}, {2}}},
    {"dtypes",
     [](const Tensors& t) {
       return at::signbit(t[0] - 0.8).logical_or(at::isposinf(t[0])).to(at::kDouble) + at::floor_divide(t[0], 0.3) +
              at::div(t[0], t[0] * 0.4, "trunc");
     },
     {{5, 4}},
     false},
    {"integers",
     [](const Tensors& t) { return (index_of(t[0], 9).bitwise_and(6)).bitwise_left_shift(1).gcd(index_of(t[0], 5) + 1); },
     {{5, 4}},
     false},
    {"polynomials",
     [](const Tensors& t) { return at::special_chebyshev_polynomial_t(t[0], 3) + at::polygamma(1, t[0]) + at::mvlgamma(t[0] + 3, 2); },
     {{5, 4}},
     false},
    {"square_clip", [](const Tensors& t) { return at::square(t[0]) + at::clip(t[0], 0.5, 1.0) + at::clamp(t[0], t[1]); }, {{5, 4}, {5, 1}}},
};
std::string name_of_case(const testing::TestParamInfo<OpCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Indexing, FamilyTest, testing::ValuesIn(kIndexing), name_of_case);
INSTANTIATE_TEST_SUITE_P(Sorting, FamilyTest, testing::ValuesIn(kSorting), name_of_case);
INSTANTIATE_TEST_SUITE_P(Reductions, FamilyTest, testing::ValuesIn(kReductions), name_of_case);
INSTANTIATE_TEST_SUITE_P(Losses, FamilyTest, testing::ValuesIn(kLosses), name_of_case);
INSTANTIATE_TEST_SUITE_P(Convolution, FamilyTest, testing::ValuesIn(kConvolution), name_of_case);
INSTANTIATE_TEST_SUITE_P(Attention, FamilyTest, testing::ValuesIn(kAttention), name_of_case);
INSTANTIATE_TEST_SUITE_P(Norms, FamilyTest, testing::ValuesIn(kNorms), name_of_case);
INSTANTIATE_TEST_SUITE_P(Matrices, FamilyTest, testing::ValuesIn(kMatrices), name_of_case);
INSTANTIATE_TEST_SUITE_P(Shapes, FamilyTest, testing::ValuesIn(kShapes), name_of_case);
INSTANTIATE_TEST_SUITE_P(Elementwise, FamilyTest, testing::ValuesIn(kElementwise), name_of_case);

}  // namespace
}  // namespace hyper_parallel
