// SPDX-License-Identifier: Apache-2.0
#include "tests/collectives/support/conformance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <numeric>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::test {
namespace {

const std::vector<at::ScalarType> kFloats{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
const std::vector<at::ScalarType> kAll{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kChar,   at::kByte, at::kShort,
                                       at::kUInt16, at::kInt,   at::kUInt32,   at::kLong, at::kUInt64, at::kBool};
const std::vector<int64_t> kSizes{0, 1, 3, 1000, 4099, 30001};

// Rank `rank`'s input: differs by rank and position, not exactly summable in floats, small enough for products and for 8 bits.
at::Tensor input(int rank, at::IntArrayRef shape, at::ScalarType dtype, int salt = 0) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  const at::Tensor index = at::arange(numel, at::kLong) * 37 + rank * 101 + salt * 13;
  if (dtype == at::kBool) return (index.remainder(3) > 0).view(shape);
  if (c10::isFloatingType(dtype)) return ((index.remainder(61) - 20).to(at::kDouble) / 7).to(dtype).view(shape);
  return (index.remainder(5) + 1).to(dtype).view(shape);
}

std::vector<at::Tensor> inputs(int size, at::IntArrayRef shape, at::ScalarType dtype, int salt = 0) {
  std::vector<at::Tensor> all;
  for (int r = 0; r < size; ++r) all.push_back(input(r, shape, dtype, salt));
  return all;
}

at::ScalarType accumulator(at::ScalarType dtype) {
  if (dtype == at::kBFloat16 || dtype == at::kHalf) return at::kFloat;
  return c10::isFloatingType(dtype) ? dtype : at::kLong;
}

// In rank order, in the accumulator's type, rounded once.
at::Tensor reduced(const std::vector<at::Tensor>& all, ReduceOp op) {
  const at::ScalarType dtype = all[0].scalar_type();
  at::Tensor result = all[0].to(accumulator(dtype));
  for (size_t r = 1; r < all.size(); ++r) {
    const at::Tensor next = all[r].to(accumulator(dtype));
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        result = result + next;
        break;
      case ReduceOp::kMin:
        result = at::minimum(result, next);
        break;
      case ReduceOp::kMax:
        result = at::maximum(result, next);
        break;
      case ReduceOp::kProd:
        result = result * next;
        break;
    }
  }
  if (op == ReduceOp::kAvg) result = result / double(all.size());
  return result.to(dtype);
}

void expect_equal(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(at::equal(actual, expected.view(actual.sizes()))) << what;
}

std::vector<ReduceOp> ops_for(at::ScalarType dtype) {
  std::vector<ReduceOp> ops{ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd};
  if (c10::isFloatingType(dtype)) ops.push_back(ReduceOp::kAvg);
  return ops;
}

std::string label(at::ScalarType dtype, ReduceOp op, int64_t numel) {
  return std::string(c10::toString(dtype)) + " " + name_of(op) + " " + std::to_string(numel);
}

// Large sizes only for some dtypes: computing what is expected takes far longer than the collectives.
bool worth_it(at::ScalarType dtype, int64_t numel) {
  return numel < 10000 || dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kLong || dtype == at::kBool;
}

// Body(dtype, op, size) for all dtypes and operations, with each size at least once for each dtype.
void for_reductions(const std::function<void(at::ScalarType, ReduceOp, int64_t)>& body) {
  for (const at::ScalarType dtype : kAll)
    for (const ReduceOp op : ops_for(dtype))
      for (const int64_t numel : kSizes)
        if ((op == ReduceOp::kSum && worth_it(dtype, numel)) || numel == 1000) body(dtype, op, numel);
}

void all_reduce(const ProcessGroup& group) {
  for_reductions([&](at::ScalarType dtype, ReduceOp op, int64_t numel) {
    const at::Tensor x = input(group.rank(), {numel}, dtype);
    group.all_reduce(x, op).wait();
    expect_equal(x, reduced(inputs(group.size(), {numel}, dtype), op), "all_reduce " + label(dtype, op, numel));
  });
}

void reduce_scatter(const ProcessGroup& group) {
  for_reductions([&](at::ScalarType dtype, ReduceOp op, int64_t numel) {
    const at::Tensor out = at::empty({numel}, dtype);
    group.reduce_scatter(out, input(group.rank(), {group.size() * numel}, dtype), op).wait();
    const at::Tensor whole = reduced(inputs(group.size(), {group.size() * numel}, dtype), op);
    expect_equal(out, whole.narrow(0, group.rank() * numel, numel), "reduce_scatter " + label(dtype, op, numel));
  });
}

void reduce(const ProcessGroup& group) {
  for_reductions([&](at::ScalarType dtype, ReduceOp op, int64_t numel) {
    for (int root = 0; root < group.size(); root += std::max(1, group.size() - 1)) {
      const at::Tensor x = input(group.rank(), {numel}, dtype);
      group.reduce(x, root, op).wait();
      const std::vector<at::Tensor> all = inputs(group.size(), {numel}, dtype);
      expect_equal(x, group.rank() == root ? reduced(all, op) : all[group.rank()], "reduce " + label(dtype, op, numel));
    }
  });
}

void all_gather(const ProcessGroup& group) {
  for (const at::ScalarType dtype : kAll)
    for (const int64_t numel : kSizes) {
      if (!worth_it(dtype, numel)) continue;
      const at::Tensor out = at::empty({group.size() * numel}, dtype);
      group.all_gather(out, input(group.rank(), {numel}, dtype)).wait();
      expect_equal(out, at::cat(inputs(group.size(), {numel}, dtype)), "all_gather");
      const at::Tensor in_place = at::zeros({group.size() * numel}, dtype);
      in_place.narrow(0, group.rank() * numel, numel).copy_(input(group.rank(), {numel}, dtype));
      group.all_gather(in_place, in_place.narrow(0, group.rank() * numel, numel)).wait();
      expect_equal(in_place, out, "all_gather in place");
    }
}

int64_t uneven(int64_t a, int64_t b = 0) { return (a * 7 + b * 3) % 5 * 501; }  // some are 0

void uneven_all_gather(const ProcessGroup& group) {
  for (const at::ScalarType dtype : kAll) {
    std::vector<at::Tensor> outputs;
    for (int r = 0; r < group.size(); ++r) outputs.push_back(at::empty({uneven(r)}, dtype));
    group.all_gather(outputs, input(group.rank(), {uneven(group.rank())}, dtype)).wait();
    for (int r = 0; r < group.size(); ++r) expect_equal(outputs[r], input(r, {uneven(r)}, dtype), "uneven all_gather");
  }
}

void uneven_reduce_scatter(const ProcessGroup& group) {
  for (const at::ScalarType dtype : kAll) {
    std::vector<at::Tensor> mine;
    for (int r = 0; r < group.size(); ++r) mine.push_back(input(group.rank(), {uneven(r)}, dtype, r));
    const at::Tensor out = at::empty({uneven(group.rank())}, dtype);
    group.reduce_scatter(out, mine).wait();
    expect_equal(out, reduced(inputs(group.size(), {uneven(group.rank())}, dtype, group.rank()), ReduceOp::kSum), "uneven reduce_scatter");
  }
}

void all_to_all(const ProcessGroup& group) {
  const int n = group.size(), me = group.rank();
  for (const at::ScalarType dtype : kAll) {
    const at::Tensor out = at::empty({2 * n, 3}, dtype);
    group.all_to_all(out, input(me, {2 * n, 3}, dtype)).wait();
    std::vector<at::Tensor> expected;
    for (int r = 0; r < n; ++r) expected.push_back(input(r, {2 * n, 3}, dtype).narrow(0, 2 * me, 2));
    expect_equal(out, at::cat(expected), "all_to_all");
  }
}

void uneven_all_to_all_of(const ProcessGroup& group, at::ScalarType dtype) {
  const int n = group.size(), me = group.rank();
  std::vector<int64_t> sends, recvs;
  for (int r = 0; r < n; ++r) sends.push_back(uneven(me, r)), recvs.push_back(uneven(r, me));
  const auto rows = [&](int r) {
    int64_t sum = 0;
    for (int to = 0; to < n; ++to) sum += uneven(r, to);
    return sum;
  };
  const at::Tensor out = at::empty({std::accumulate(recvs.begin(), recvs.end(), int64_t(0)), 2}, dtype);
  group.all_to_all(out, input(me, {rows(me), 2}, dtype), recvs, sends).wait();
  std::vector<at::Tensor> expected, list_in, list_out;
  for (int r = 0; r < n; ++r) {
    int64_t before = 0;
    for (int to = 0; to < me; ++to) before += uneven(r, to);
    expected.push_back(input(r, {rows(r), 2}, dtype).narrow(0, before, uneven(r, me)));
    list_in.push_back(input(me, {uneven(me, r), 3}, dtype, r).t());  // not contiguous
    list_out.push_back(at::zeros({3, uneven(r, me)}, dtype).t());
  }
  expect_equal(out, at::cat(expected), "uneven all_to_all");
  group.all_to_all(list_out, list_in).wait();
  for (int r = 0; r < n; ++r) {
    EXPECT_TRUE(at::equal(list_out[r].reshape(-1), input(r, {uneven(r, me), 3}, dtype, me).t().reshape(-1))) << "all_to_all of lists";
  }
}

void uneven_all_to_all(const ProcessGroup& group) {
  for (const at::ScalarType dtype : kAll) uneven_all_to_all_of(group, dtype);
}

void broadcast_gather_scatter(const ProcessGroup& group) {
  const int n = group.size(), me = group.rank();
  for (int root = 0; root < n; ++root)
    for (const int64_t numel : {int64_t(0), int64_t(20001)})
      for (const at::ScalarType dtype : kAll) {
        if (!worth_it(dtype, numel)) continue;
        const at::Tensor x = input(me, {numel}, dtype);
        group.broadcast(x, root).wait();
        expect_equal(x, input(root, {numel}, dtype), "broadcast");
        std::vector<at::Tensor> outputs, scattered;
        for (int r = 0; r < n && me == root; ++r) {
          outputs.push_back(at::empty({numel + r}, dtype));
          scattered.push_back(input(me, {numel + r}, dtype, r));
        }
        group.gather(outputs, input(me, {numel + me}, dtype), root).wait();
        for (int r = 0; r < n && me == root; ++r) expect_equal(outputs[r], input(r, {numel + r}, dtype), "gather");
        const at::Tensor out = at::empty({numel + me}, dtype);
        group.scatter(out, scattered, root).wait();
        expect_equal(out, input(root, {numel + me}, dtype, me), "scatter");
      }
}

void non_contiguous(const ProcessGroup& group) {
  const int n = group.size(), me = group.rank();
  const at::Tensor x = input(me, {40, 30}, at::kFloat).t();
  group.all_reduce(x).wait();
  EXPECT_FALSE(x.is_contiguous());
  EXPECT_TRUE(at::equal(x, reduced(inputs(n, {40, 30}, at::kFloat), ReduceOp::kSum).t())) << "all_reduce of a transposed tensor";
  const at::Tensor strided = input(me, {10, 8}, at::kLong).narrow(1, 2, 3);
  group.broadcast(strided, n - 1).wait();
  EXPECT_TRUE(at::equal(strided, input(n - 1, {10, 8}, at::kLong).narrow(1, 2, 3))) << "broadcast of a slice";
  const at::Tensor out = at::empty({n * 30}, at::kLong);
  group.all_gather(out, input(me, {10, 8}, at::kLong).narrow(1, 2, 3)).wait();
  for (int r = 0; r < n; ++r) {
    EXPECT_TRUE(at::equal(out.narrow(0, r * 30, 30), input(r, {10, 8}, at::kLong).narrow(1, 2, 3).reshape(-1))) << "all_gather of a slice";
  }
  const at::Tensor leaf = input(me, {6}, at::kFloat).set_requires_grad(true);
  group.all_reduce(leaf).wait();
  EXPECT_TRUE(leaf.is_leaf()) << "eager collectives never enter autograd";
  const at::Tensor scalar = input(me, {}, at::kDouble);
  group.all_reduce(scalar, ReduceOp::kMax).wait();
  expect_equal(scalar, reduced(inputs(n, {}, at::kDouble), ReduceOp::kMax), "scalar");
}

void coalesced_of(const ProcessGroup& group, at::ScalarType dtype) {
  const int n = group.size(), me = group.rank();
  std::vector<at::Tensor> tensors, whole, parts, shards, full;
  for (const int64_t numel : kSizes) {
    const int salt = int(tensors.size());
    tensors.push_back(input(me, {numel}, dtype, salt));
    whole.push_back(input(me, {numel * n}, dtype, salt));
    parts.push_back(at::empty({numel}, dtype));
    shards.push_back(input(me, {numel}, dtype, salt));
    full.push_back(at::empty({numel * n}, dtype));
  }
  group.all_reduce(tensors).wait();
  group.reduce_scatter_coalesced(parts, whole).wait();
  group.all_gather_coalesced(full, shards).wait();
  for (int i = 0; i < int(kSizes.size()); ++i) {
    const int64_t numel = kSizes[i];
    expect_equal(tensors[i], reduced(inputs(n, {numel}, dtype, i), ReduceOp::kSum), "coalesced all_reduce");
    expect_equal(parts[i], reduced(inputs(n, {numel * n}, dtype, i), ReduceOp::kSum).narrow(0, me * numel, numel),
                 "coalesced reduce_scatter");
    expect_equal(full[i], at::cat(inputs(n, {numel}, dtype, i)), "coalesced all_gather");
  }
}

void coalesced(const ProcessGroup& group) {
  for (const at::ScalarType dtype : kAll) coalesced_of(group, dtype);
}

void send_recv_of(const ProcessGroup& group, at::ScalarType dtype, int64_t numel) {
  const int n = group.size(), me = group.rank();
  const int next = (me + 1) % n, previous = (me + n - 1) % n;
  std::vector<Work> works;
  std::vector<at::Tensor> received;
  for (int i = 0; i < 3; ++i) works.push_back(group.send(input(me, {numel + i}, dtype, i), next));
  for (int i = 0; i < 3; ++i) {
    received.push_back(at::empty({numel + i}, dtype));
    works.push_back(group.recv(received.back(), previous));
  }
  const at::Tensor sum = input(me, {100}, at::kFloat);
  group.all_reduce(sum).wait();  // a collective between posting and waiting
  for (int i = int(works.size()) - 1; i >= 0; --i) works[i].wait();
  for (int i = 0; i < 3; ++i) expect_equal(received[i], input(previous, {numel + i}, dtype, i), "send and recv");
  expect_equal(sum, reduced(inputs(n, {100}, at::kFloat), ReduceOp::kSum), "all_reduce beside send and recv");
}

void send_recv(const ProcessGroup& group) {
  if (group.size() == 1) return;
  for (const at::ScalarType dtype : kAll)
    for (const int64_t numel : {0, 7}) send_recv_of(group, dtype, numel);
  send_recv_of(group, at::kDouble, 200001);
}

void in_any_order(const ProcessGroup& group) {
  const int n = group.size(), me = group.rank(), count = 30;
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < count; ++i) {
    tensors.push_back(input(me, {i % 3 == 0 ? 30000 : 10}, at::kFloat, i));
    works.push_back(group.all_reduce(tensors.back()));
  }
  for (int i = 0; i < count; ++i) works[(i * 7 + me * 11) % count].wait();
  for (int i = 0; i < count; ++i)
    expect_equal(tensors[i], reduced(inputs(n, tensors[i].sizes(), at::kFloat, i), ReduceOp::kSum), "waited for in any order");
  Work polled = group.all_reduce(tensors[0]);
  while (!polled.done()) {
  }
  polled.wait();
}

void sub_groups(const ProcessGroup& group) {
  const int n = group.size(), me = group.rank();
  std::vector<int> reversed;
  for (int r = n - 1; r >= 0; r -= 2) reversed.push_back(r);
  const ProcessGroup list = group.subgroup(reversed, "list");
  EXPECT_EQ(bool(list), (n - 1 - me) % 2 == 0);
  if (list) {
    EXPECT_EQ(list.size(), int(reversed.size()));
    EXPECT_EQ(reversed[list.rank()], me);
    EXPECT_EQ(list.ranks()[list.rank()], group.ranks()[me]);
    EXPECT_STREQ(list.backend_name(), group.backend_name());
    const at::Tensor out = at::empty({4 * list.size()}, at::kFloat);
    list.all_gather(out, input(me, {4}, at::kFloat)).wait();
    for (int i = 0; i < list.size(); ++i) expect_equal(out.narrow(0, 4 * i, 4), input(reversed[i], {4}, at::kFloat), "sub-group order");
  }
  const ProcessGroup half = group.split(me * 2 / n, -me, "half"), pairs = group.split(me / 2, 0, "pairs");
  const ProcessGroup nested = half.split(me == 0 ? -1 : 3, me, "nested");
  EXPECT_EQ(bool(nested), me != 0);
  const at::Tensor a = input(me, {20000}, at::kLong), b = a.clone();
  Work first = half.all_reduce(a), second = pairs.all_reduce(b);  // two groups at once
  second.wait();
  first.wait();
  std::vector<at::Tensor> in_half, in_pair;
  for (int r = 0; r < n; ++r) {
    if (r * 2 / n == me * 2 / n) in_half.push_back(input(r, {20000}, at::kLong));
    if (r / 2 == me / 2) in_pair.push_back(input(r, {20000}, at::kLong));
  }
  EXPECT_EQ(half.size(), int(in_half.size()));
  expect_equal(a, reduced(in_half, ReduceOp::kSum), "split in halves");
  expect_equal(b, reduced(in_pair, ReduceOp::kSum), "split in pairs");
}

void barriers(const ProcessGroup& group) {
  for (int i = 0; i < 20; ++i) group.barrier();
}

}  // namespace

const std::vector<ConformanceCase>& conformance_cases() {
  static const std::vector<ConformanceCase> cases{
      {"all_reduce", all_reduce},
      {"reduce_scatter", reduce_scatter},
      {"reduce", reduce},
      {"all_gather", all_gather},
      {"uneven_all_gather", uneven_all_gather},
      {"uneven_reduce_scatter", uneven_reduce_scatter},
      {"all_to_all", all_to_all},
      {"uneven_all_to_all", uneven_all_to_all},
      {"broadcast_gather_scatter", broadcast_gather_scatter},
      {"non_contiguous", non_contiguous},
      {"coalesced", coalesced},
      {"send_recv", send_recv},
      {"in_any_order", in_any_order},
      {"sub_groups", sub_groups},
      {"barriers", barriers},
  };
  return cases;
}

}  // namespace hyper_parallel::test
