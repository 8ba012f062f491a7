// SPDX-License-Identifier: Apache-2.0
// Rows of user files, and every overload that PyTorch's DTensor has a rule for.
#include "hyper_parallel/shard/rules.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <torch/library.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include <unistd.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/shard/op_registry.h"
#include "tests/shard/support/compare.h"
#include "tests/support/message_of.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;

at::Tensor outer_sum(const at::Tensor& a, const at::Tensor& b) { return a.unsqueeze(1) + b.unsqueeze(0); }

TORCH_LIBRARY(rules_test, library) {
  library.def("outer_sum(Tensor a, Tensor b) -> Tensor");
  library.def("other(Tensor a, Tensor b) -> Tensor");
  library.impl("outer_sum", torch::dispatch(c10::DispatchKey::CPU, &outer_sum));
}

class RulesFile {
 public:
  explicit RulesFile(const std::string& text) {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() / str("rules_test_", getpid(), "_", count++, ".yaml");
    std::ofstream(path_) << text;
  }
  ~RulesFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string load_error(const std::string& text) {
  const RulesFile file(text);
  return testing_support::message_of<LayoutError>([&] { load_rules(file.path()); });
}

at::Tensor call(const at::Tensor& a, const at::Tensor& b) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("rules_test::outer_sum", "")
      .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>()
      .call(a, b);
}

TEST(Rules, AFileMakesAnOpKnown) {
  const at::Tensor a = at::arange(5, at::kDouble), b = at::arange(3, at::kDouble);
  const RulesFile file("# comment\nrules_test::outer_sum: { rule: \"m, n -> m n\", doc: \"Sums.\" }\n");
  run_threads(
      2,
      [&](World& world) {
        const DeviceMesh mesh(world.group(), {2}, {"a"});
        const at::Tensor rows = shard_of(a, Layout(mesh)("a")), all = shard_of(b, Layout(mesh));
        if (world.rank() == 0) {
          EXPECT_THROW(call(rows, all), LayoutError);
          load_rules(file.path());
        }
        world.group().barrier();
        load_rules(file.path());  // again: nothing happens
        EXPECT_EQ(DTensor(call(rows, all)).layout(), Layout(mesh)("a"));
        EXPECT_TRUE(close(whole_of(call(rows, all)), outer_sum(a, b)));
        EXPECT_TRUE(close(whole_of(call(shard_of(a, Layout(mesh, {partial()})), shard_of(b, Layout(mesh)("a")))), outer_sum(a, b)));
      },
      kQuick);
}

TEST(Rules, ErrorsNameFileAndLine) {
  EXPECT_THAT(load_error("aten::mm: { rule: \"m k, k n -> m n\" }"),
              AllOf(HasSubstr("op aten::mm has a row already"), HasSubstr(".yaml:1"), HasSubstr("and shard/ops/matmul.yaml:")));
  EXPECT_THAT(load_error("\nrules_test::nothing: { rule: pointwise }"),
              AllOf(HasSubstr("op rules_test::nothing: libtorch has no such op"), HasSubstr(".yaml:2")));
  EXPECT_THAT(load_error("rules_test::other: { rule: \"m, n, k -> m n\" }"),
              AllOf(HasSubstr("has 3 inputs, the op 2 tensor arguments"), HasSubstr(".yaml:1")));
  EXPECT_THAT(load_error("rules_test::other: { rule: \"m, n -> m, n\" }"), HasSubstr("has 2 outputs, the op returns 1"));
  EXPECT_THAT(load_error("rules_test::other: { rule: \"m, n -> m n\", linear: \"0 + 2\" }"), HasSubstr("linear: tensor 2"));
  EXPECT_THAT(load_error("rules_test::other: { rule: pointwise, whole: dim }"),
              HasSubstr("the op has no argument `dim` (its arguments: a, b)"));
  EXPECT_THAT(load_error("rules_test::other: { rule: pointwise }\nrules_test::other: { rule: pointwise }"), HasSubstr("two rows"));
  try {
    load_rules("/nowhere/rules.yaml");
    FAIL();
  } catch (const LayoutError& error) {
    EXPECT_THAT(error.what(), HasSubstr("can't read /nowhere/rules.yaml"));
  }
}

TEST(Rules, EmbeddedRowsFitTheirOps) {
  for (const auto& [name, row] : op_rows()) EXPECT_NO_THROW(check_op_row(row)) << name;
}

// ---- parity with torch.distributed.tensor

std::vector<std::string> lines_of(const std::string& file) {
  const char* root = std::getenv("HYPER_PARALLEL_SOURCE");
  std::ifstream in(std::filesystem::path(root ? root : ".") / "tests/parity" / file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  return lines;
}

TEST(Overloads, EveryOneOfPyTorchsHasARowOrAReason) {
  const auto overloads = lines_of("dtensor_overloads.txt");
  ASSERT_GT(overloads.size(), 1100u);
  std::map<std::string, std::string> excluded;
  for (const std::string& line : lines_of("dtensor_overloads_excluded.txt")) {
    const auto colon = line.find(": ");
    ASSERT_NE(colon, std::string::npos) << line;
    EXPECT_TRUE(excluded.emplace(line.substr(0, colon), line.substr(colon + 2)).second) << line;
  }
  int rows = 0, composed = 0;
  for (const std::string& name : overloads) {
    const auto dot = name.find('.');
    const auto op = c10::Dispatcher::singleton().findSchema({name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
    const bool has_row = op_rows().count(name) > 0, listed = excluded.erase(name) > 0;
    const bool composite = op && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    rows += has_row;
    composed += !has_row && composite;
    EXPECT_TRUE(has_row || composite || listed) << name << " has neither a row nor a reason in dtensor_overloads_excluded.txt";
    EXPECT_FALSE(listed && (has_row || composite)) << name << " is listed as excluded but works";
  }
  for (const auto& [name, reason] : excluded) ADD_FAILURE() << name << " is excluded but not in PyTorch's list";
  std::printf("%zu overloads: %d rows, %d composed of ops with rows\n", overloads.size(), rows, composed);
}

}  // namespace
}  // namespace hyper_parallel
