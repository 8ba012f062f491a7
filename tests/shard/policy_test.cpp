// SPDX-License-Identifier: Apache-2.0
// Policies: implicit redistribution and ops without a rule.
#include "hyper_parallel/shard/policy.h"

#include <ATen/ops/block_diag.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/renorm.h>
#include <gmock/gmock.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/comm_debug.h"
#include "tests/shard/support/compare.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;

at::Tensor example(const Shape& shape) {
  int64_t numel = 1;
  for (int64_t size : shape) numel *= size;
  return at::arange(numel, at::kDouble).view(shape) + 1;
}

template <class Body>
void on_two_ranks(const Body& body) {
  run_threads(
      2, [&](World& world) { body(DeviceMesh(world.group(), {2}, {"a"})); }, kQuick);
}

constexpr ShardPolicy kStrict{.implicit_redistribution = ImplicitRedistribution::kError};
constexpr ShardPolicy kReplicate{.on_missing_rule = MissingRule::kReplicate};

TEST(Policy, ErrorNamesOpMoveAndBytesBeforeAnythingIsSent) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const at::Tensor rows = shard_of(example({6, 4}), Layout(mesh)("a")), all = shard_of(example({4, 3}), Layout(mesh));
    const at::Tensor columns = shard_of(example({6, 4}), Layout(mesh)("", "a"));
    const ShardPolicyGuard guard(kStrict);
    EXPECT_TRUE(close(DTensor(at::mm(rows, all)).redistribute(Layout(mesh)).to_local(), at::mm(example({6, 4}), example({4, 3}))));
    const CommDebugMode comm;
    EXPECT_THAT(message_of([&] { rows + columns; }), AllOf(HasSubstr("aten::add.Tensor: the inputs would have to be redistributed"),
                                                           HasSubstr("[S(1)] to [S(0)] by all_to_all(a), 48 bytes")));
    EXPECT_EQ(comm.count(), 0);
    EXPECT_TRUE(close(whole_of(rows + shard_of(example({6, 4}), Layout(mesh))), example({6, 4}) * 2));  // a slice sends nothing
  });
}

TEST(Policy, WarnsOncePerOpAndSpecs) {
  testing::internal::CaptureStderr();
  on_two_ranks([](const DeviceMesh& mesh) {
    const ShardPolicyGuard guard({.implicit_redistribution = ImplicitRedistribution::kWarn});
    const at::Tensor rows = shard_of(example({6, 4}), Layout(mesh)("a")), columns = shard_of(example({6, 4}), Layout(mesh)("", "a"));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(close(whole_of(rows * columns), example({6, 4}) * example({6, 4})));
  });
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, AllOf(HasSubstr("aten::mul.Tensor: redistributes its inputs"), HasSubstr("by all_to_all(a), 48 bytes")));
  EXPECT_EQ(log.find("redistributes"), log.rfind("redistributes"));
}

TEST(Policy, GuardRestores) {
  {
    const ShardPolicyGuard guard(kStrict);
    EXPECT_EQ(shard_policy().implicit_redistribution, ImplicitRedistribution::kError);
  }
  EXPECT_EQ(shard_policy().implicit_redistribution, ImplicitRedistribution::kAllow);
  EXPECT_EQ(parse_missing_rule("replicate"), MissingRule::kReplicate);
  EXPECT_THAT(message_of([] { parse_implicit_redistribution("maybe"); }), HasSubstr("(allowed: allow, warn, error)"));
  EXPECT_THAT(message_of([] { parse_missing_rule("maybe"); }), HasSubstr("(allowed: error, replicate)"));
}

TEST(Policy, OpsWithoutARuleComputeOnEveryRank) {
  testing::internal::CaptureStderr();
  on_two_ranks([](const DeviceMesh& mesh) {
    const at::Tensor whole = example({5, 4});
    const at::Tensor expected = at::renorm(whole, 2, 0, 3);
    for (const Layout& layout : {Layout(mesh), Layout(mesh)("a"), Layout(mesh)("", "a"), Layout(mesh, {partial()})}) {
      const at::Tensor x = shard_of(whole, layout);
      EXPECT_THAT(message_of([&] { at::renorm(x, 2, 0, 3); }), HasSubstr("no sharding rule"));
      const ShardPolicyGuard guard(kReplicate);
      const DTensor y = at::renorm(x, 2, 0, 3);
      EXPECT_EQ(y.layout(), Layout(mesh));
      EXPECT_TRUE(close(y.to_local(), expected));
      EXPECT_TRUE(close(whole_of(at::block_diag({x, x})), at::block_diag({whole, whole})));
    }
  });
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("aten::renorm: no sharding rule, computed on every rank"));
  EXPECT_EQ(log.find("aten::renorm:"), log.rfind("aten::renorm:"));
}

TEST(Policy, InPlaceWithoutARuleKeepsTheLayout) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const ShardPolicyGuard guard(kReplicate);
    const at::Tensor expected = at::renorm(example({5, 4}), 2, 0, 3);
    for (const Layout& layout : {Layout(mesh), Layout(mesh)("a"), Layout(mesh)("", "a")}) {
      at::Tensor x = shard_of(example({5, 4}), layout);
      x.renorm_(2, 0, 3);
      EXPECT_EQ(DTensor(x).layout(), layout);
      EXPECT_TRUE(close(whole_of(x), expected));
      at::Tensor out = shard_of(example({5, 4}), layout);
      at::renorm_out(out, shard_of(example({5, 4}), Layout(mesh)("a")), 2, 0, 3);
      EXPECT_TRUE(close(whole_of(out), expected));
    }
    at::Tensor p = shard_of(example({5, 4}), Layout(mesh, {partial()}));
    EXPECT_THAT(message_of([&] { p.renorm_(2, 0, 3); }), HasSubstr("writes to a Partial tensor; call reduce_partial() first"));
  });
}

}  // namespace
}  // namespace hyper_parallel
