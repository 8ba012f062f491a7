// SPDX-License-Identifier: Apache-2.0
// Placements as data: the `example` of every row that has one, and a table of chosen layouts and redistributions.
#include "hyper_parallel/shard/propagate.h"

#include <gmock/gmock.h>

#include <regex>

#include <ATen/ops/sum.h>
#include "hyper_parallel/base/error.h"
#include "hyper_parallel/shard/detail/cache.h"

#include "tests/shard/support/compare.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;

Placement parse_placement(const std::string& text) {
  std::smatch match;
  if (std::regex_match(text, match, std::regex("S\\((\\d)\\)"))) return shard(std::stoi(match[1]));
  return text == "P(sum)" ? partial() : text == "P(avg)" ? partial(ReduceOp::kAvg) : replicate();
}

std::vector<Placement> parse_placements(const std::string& text) {
  std::vector<Placement> placements;
  static const std::regex word("[RSP](\\([a-z0-9]+\\))?");
  for (auto found = std::sregex_iterator(text.begin(), text.end(), word); found != std::sregex_iterator(); ++found)
    placements.push_back(parse_placement(found->str()));
  return placements;
}

c10::OperatorHandle find_op(const std::string& name) {
  const auto dot = name.find('.');
  return *c10::Dispatcher::singleton().findSchema({name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
}

// All tensors are 8 x 8 but a bias, the other arguments have their defaults.
Propagation propagate_example(const std::string& name, const std::vector<Placement>& inputs, const DeviceMesh& mesh) {
  const auto op = find_op(name);
  Stack stack;
  size_t next = 0;
  for (const auto& argument : op.schema().arguments()) {
    const bool tensor = argument.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
    if (tensor && next < inputs.size()) {
      const Shape shape = argument.name() == "bias" ? Shape{8} : Shape{8, 8};
      stack.emplace_back(shard_of(at::arange(argument.name() == "bias" ? 8 : 64, at::kDouble).view(shape), Layout(mesh, {inputs[next++]})));
    } else
      stack.push_back(argument.default_value().value_or(c10::IValue()));
  }
  return propagate(op, op_rows().at(name), stack);
}

std::vector<Placement> output_placements(const Propagation& result) {
  if (result.deferred) return result.deferred_outputs[0].placements;
  return result.out ? result.out->placements() : result.inputs[0]->placements();  // in place
}

TEST(Rows, ExamplesHold) {
  run_threads(
      2,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {2}, {"a"});
        int checked = 0;
        for (const auto& [name, row] : op_rows()) {
          if (row.example.empty()) continue;
          for (const auto& one : split(row.example, ';')) {
            const auto arrow = one.find("->");
            const Propagation result = propagate_example(name, parse_placements(one.substr(0, arrow)), mesh);
            EXPECT_EQ(output_placements(result), parse_placements(one.substr(arrow + 2))) << name << ": " << one;
            ++checked;
          }
        }
        EXPECT_GE(checked, 8);
      },
      kQuick);
}

struct Choice {
  const char *op, *inputs, *output, *moves;
};

TEST(Propagate, TakesTheCheapestPlacement) {
  const Choice table[] = {
      {"aten::mm", "S(1), S(0)", "P(sum)", ""},
      {"aten::mm", "R, S(1)", "S(1)", ""},
      {"aten::mm", "R, S(0)", "P(sum)", "slice(a);"},
      {"aten::mm", "P(sum), R", "P(sum)", ""},
      {"aten::addmm", "R, S(1), S(0)", "P(sum)", "keep_term(a);"},
      {"aten::add.Tensor", "P(sum), R", "P(sum)", "keep_term(a);"},
      {"aten::add.Tensor", "S(0), R", "S(0)", "slice(a);"},
      {"aten::add.Tensor", "P(avg), R", "P(avg)", "keep_term(a);"},
      {"aten::mul.Tensor", "P(sum), P(sum)", "P(sum)", "all_reduce(a);"},
      {"aten::relu", "P(sum)", "S(0)", "reduce_scatter(a);"},
      {"aten::relu", "S(1)", "S(1)", ""},
      {"aten::sum", "S(0)", "P(sum)", ""},
      {"aten::t", "S(0)", "S(1)", ""},
      {"aten::exp", "R", "R", ""},
  };
  run_threads(
      2,
      [&](World& world) {
        const DeviceMesh mesh(world.group(), {2}, {"a"});
        for (const Choice& choice : table) {
          const Propagation result = propagate_example(choice.op, parse_placements(choice.inputs), mesh);
          std::string moves;
          for (const InputPlan& plan : result.plans) moves += plan.plan->to_string() + ";";
          EXPECT_EQ(output_placements(result), parse_placements(choice.output)) << choice.op << " " << choice.inputs;
          EXPECT_EQ(moves, choice.moves) << choice.op << " " << choice.inputs;
          EXPECT_EQ(result.cost_us > 1, moves.find("reduce") != std::string::npos);
        }
      },
      kQuick);
}

TEST(Cache, KeysTellCallsApart) {
  run_threads(
      1,
      [](World& world) {
        const DeviceMesh mesh(world.group(), {1}, {"a"});
        const at::Tensor f = shard_of(at::arange(9, at::kFloat).view({3, 3}), Layout(mesh)),
                         i = shard_of(at::arange(9, at::kInt).view({3, 3}), Layout(mesh));
        const auto misses_of = [](const auto& call) {
          const size_t before = detail::cache().misses();
          call();
          const size_t fresh = detail::cache().misses() - before;
          call();
          EXPECT_EQ(detail::cache().misses() - before, fresh);
          return fresh;
        };
        EXPECT_EQ(misses_of([&] { f.sum(0); }), 1u);
        EXPECT_EQ(misses_of([&] { f.sum(1); }), 1u);
        EXPECT_EQ(misses_of([&] { f.sum(1, true); }), 1u);
        EXPECT_EQ(misses_of([&] { f.pow(2); }), 1u);
        EXPECT_EQ(misses_of([&] { f.pow(3); }), 0u);  // the exponent's value is not part of the key
        EXPECT_EQ(misses_of([&] { i.pow(2); }), 1u);
        EXPECT_EQ(i.pow(2.5).scalar_type(), at::kFloat);
        EXPECT_EQ(i.pow(2).scalar_type(), at::kInt);
        EXPECT_EQ(misses_of([&] { f.add(f, 2); }), 1u);
        EXPECT_EQ(misses_of([&] { f.add(f, 3); }), 0u);
        EXPECT_EQ(f.sum(at::kDouble).scalar_type(), at::kDouble);
        EXPECT_EQ(f.sum().scalar_type(), at::kFloat);
        EXPECT_EQ(misses_of([&] { f.view({9}); }), 1u);
        EXPECT_EQ(misses_of([&] { f.view({9, 1}); }), 1u);
      },
      kQuick);
}

}  // namespace
}  // namespace hyper_parallel
