// SPDX-License-Identifier: Apache-2.0
// Linear algebra on stacks of matrices: leading dims may be sharded, the matrices stay whole.
#include <map>
#include <set>

#include "hyper_parallel/shard/detail/rule_support.h"

namespace hyper_parallel {
namespace {

using namespace detail;

constexpr int kEmpty = -1;  // an output that the op leaves empty

// Dims of each output behind the leading ones.
std::vector<int> trailing_of_outputs(const OpCall& call, int right_hand_side) {
  static const std::map<std::string, std::vector<int>> known{
      {"cholesky", {2}},
      {"cholesky_inverse", {2}},
      {"cholesky_solve", {2}},
      {"geqrf", {2, 1}},
      {"_linalg_det", {0, 2, 1}},
      {"_linalg_eigvals", {1}},
      {"_linalg_slogdet", {0, 0, 2, 1}},
      {"linalg_cholesky_ex", {2, 0}},
      {"linalg_eig", {1, 2}},
      {"linalg_householder_product", {2}},
      {"linalg_inv_ex", {2, 0}},
      {"linalg_ldl_factor_ex", {2, 1, 0}},
      {"linalg_ldl_solve", {2}},
      {"linalg_lu_factor_ex", {2, 1, 0}},
      {"linalg_lu_solve", {2}},
      {"linalg_matrix_exp", {2}},
      {"linalg_pinv", {2}},
      {"linalg_solve_triangular", {2}},
      {"ormqr", {2}},
      {"triangular_solve", {2, 2}},
  };
  const std::string name = call.op->schema().name().substr(6);
  if (const auto found = known.find(name); found != known.end()) return found->second;
  const auto if_asked = [&](const char* argument) { return call[argument].toBool() ? 2 : kEmpty; };
  if (name == "_linalg_eigh") return {1, if_asked("compute_v")};
  if (name == "_linalg_svd") return {if_asked("compute_uv"), 1, if_asked("compute_uv")};
  if (name == "_linalg_solve_ex") return {right_hand_side, 2, 1, 0};
  if (name == "linalg_lu") return {if_asked("pivot"), 2, 2};
  if (name == "lu_unpack") return {if_asked("unpack_pivots"), if_asked("unpack_data"), if_asked("unpack_data")};
  if (name == "linalg_qr") return {call["mode"].toStringRef() == "r" ? kEmpty : 2, 2};
  call.fail("the rule `matrices` doesn't know this op");
}

size_t trailing_of_input(const OpCall& call, const TensorUse& use, int right_hand_side) {
  static const std::set<std::string> vectors{"pivots", "LU_pivots", "tau", "input2"}, scalars{"atol", "rtol"};
  const std::string& name = call.op->schema().arguments()[use.argument].name();
  if (name == "input2" && call.op->schema().name() != "aten::ormqr") return 2;
  if (name == "B") return size_t(right_hand_side);
  return vectors.count(name) ? 1 : scalars.count(name) ? 0 : 2;
}

// linalg_solve_ex takes B as a vector if it has A's shape but for the last dim.
int dims_of_right_hand_side(const OpCall& call) {
  if (call.op->schema().name() != "aten::_linalg_solve_ex") return 2;
  const Shape &a = call.tensors[0].sizes, &b = call.tensors[1].sizes;
  return b.size() == 1 || (a.size() == b.size() + 1 && std::equal(b.begin(), b.end(), a.begin())) ? 1 : 2;
}

void matrices_rule(const OpCall& call, Factorization& f) {
  start_whole(call, f);
  const int right_hand_side = dims_of_right_hand_side(call);
  const auto outputs = trailing_of_outputs(call, right_hand_side);
  f.outputs.resize(outputs.size());
  f.opaque.assign(outputs.size(), true);
  std::optional<Shape> batch;
  for (const TensorUse& use : call.tensors) {
    if (!use.present) continue;
    const size_t trailing = trailing_of_input(call, use, right_hand_side);
    if (use.sizes.size() < trailing) return;
    const Shape leading(use.sizes.begin(), use.sizes.end() - int64_t(trailing));
    if (batch && leading != *batch) return;  // broadcast: all of it on every rank
    batch = leading;
  }
  const auto factors = new_factors(*batch, f);
  for (Factor& factor : f.factors) factor.non_empty = true;
  for (size_t tensor = 0; tensor < call.tensors.size(); ++tensor)
    if (call.tensors[tensor].present) std::copy(factors.begin(), factors.end(), f.inputs[tensor].begin());
  for (size_t output = 0; output < outputs.size(); ++output) {
    f.opaque[output] = outputs[output] == kEmpty;
    if (f.opaque[output]) continue;
    f.outputs[output] = factors;
    f.outputs[output].resize(factors.size() + size_t(outputs[output]), kNone);
  }
}

HYPER_PARALLEL_OP_RULE("matrices", matrices_rule);

}  // namespace
}  // namespace hyper_parallel
