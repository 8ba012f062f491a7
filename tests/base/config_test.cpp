// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/config_reader.h"
#include "hyper_parallel/base/config_writer.h"

namespace hyper_parallel {
namespace {

struct Inner {
  int64_t steps = 10;
  double lr = 1e-3;
  std::string kind = "adamw";
  void fields(ConfigVisitor& v) {
    v.field("steps", steps, {.doc = "Steps.", .min = 1});
    v.field("lr", lr, {.doc = "Rate.", .min = 0, .above_min = true});
    v.field("kind", kind, {.doc = "Kind.", .allowed = {"adamw", "muon"}});
  }
};

struct Outer {
  bool flag = false;
  std::optional<int64_t> stop;
  std::vector<std::string> paths;
  nlohmann::ordered_json free;
  Inner inner;
  void fields(ConfigVisitor& v) {
    v.field("flag", flag, {.doc = "Flag."});
    v.field("stop", stop, {.doc = "Stop.", .min = 1});
    v.field("paths", paths, {.doc = "Paths."});
    v.field("free", free, {.doc = "Anything."});
    v.section("inner", inner, "Inner things.");
  }
};

Outer read(const std::string& text, const std::vector<std::string>& overrides = {}) {
  ConfigDocument document = ConfigDocument::parse(text, "run.yaml");
  for (const auto& assignment : overrides) document.override_value(assignment);
  return read_config<Outer>(document);
}

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    read(text, overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Config, ReadsEveryKindOfField) {
  const Outer config =
      read("flag: true\nstop: 7\npaths: [a, \"3\"]\nfree: {x: 1, y: [1.5, no], z: \"2\"}\ninner: {steps: 1_000, lr: 3e-4, kind: muon}");
  EXPECT_TRUE(config.flag);
  EXPECT_EQ(config.stop, 7);
  EXPECT_THAT(config.paths, testing::ElementsAre("a", "3"));
  EXPECT_EQ(config.free.dump(), R"({"x":1,"y":[1.5,"no"],"z":"2"})");
  EXPECT_EQ(config.inner.steps, 1000);
  EXPECT_EQ(config.inner.lr, 3e-4);
  EXPECT_EQ(config.inner.kind, "muon");
}

TEST(Config, EmptyFileGivesDefaults) { EXPECT_EQ(config_yaml(read("")), config_yaml(Outer())); }

TEST(Config, OverridesWinAndMakeSections) {
  EXPECT_EQ(read("inner: {steps: 3}", {"--inner.steps=5"}).inner.steps, 5);
  EXPECT_EQ(read("", {"inner.lr=0.5"}).inner.lr, 0.5);
  EXPECT_EQ(read("stop: 3", {"--stop=null"}).stop, std::nullopt);
}

TEST(Config, ResolvedYamlReadsBackEqual) {
  const Outer config = read("flag: true\nfree: {a: {b: 0.1}, c: text}\ninner: {lr: 1}\npaths: [\"true\"]");
  EXPECT_EQ(config_yaml(read(config_yaml(config))), config_yaml(config));
}

struct BadCase {
  const char *text, *message;
};
class ConfigErrors : public testing::TestWithParam<BadCase> {};

TEST_P(ConfigErrors, NameThePathTheValueAndTheLine) { EXPECT_EQ(error_of(GetParam().text), GetParam().message); }

INSTANTIATE_TEST_SUITE_P(
    Bad, ConfigErrors,
    testing::Values(BadCase{"flag: true\ninner:\n  step: 3", "inner.step: unknown key (did you mean \"steps\"?)\n  in run.yaml:3"},
                    BadCase{"momentum: 3", "momentum: unknown key (known here: flag, stop, paths, free, inner)\n  in run.yaml:1"},
                    BadCase{"inner:\n  steps: many", "inner.steps: expected an integer, got \"many\"\n  in run.yaml:2"},
                    BadCase{"inner: {steps: 1.5}", "inner.steps: expected an integer, got \"1.5\"\n  in run.yaml:1"},
                    BadCase{"inner: {steps: \"3\"}", "inner.steps: expected an integer, got \"3\"\n  in run.yaml:1"},
                    BadCase{"inner: {steps: 0}", "inner.steps: 0 is out of range (allowed: >= 1)\n  in run.yaml:1"},
                    BadCase{"inner: {lr: 0}", "inner.lr: 0 is out of range (allowed: > 0)\n  in run.yaml:1"},
                    BadCase{"inner: {lr: nan}", "inner.lr: nan is out of range (allowed: > 0)\n  in run.yaml:1"},
                    BadCase{"inner: {kind: sgd}", "inner.kind: unknown value \"sgd\" (allowed: adamw, muon)\n  in run.yaml:1"},
                    BadCase{"flag: yes", "flag: expected true or false, got \"yes\"\n  in run.yaml:1"},
                    BadCase{"flag: true\nflag: false", "flag: given twice\n  in run.yaml:1"},
                    BadCase{"free:\n  a: {b: 1, b: 2}", "free.a.b: given twice\n  in run.yaml:2"},
                    BadCase{"inner: [1]", "inner: expected a map, got a list\n  in run.yaml:1"},
                    BadCase{"paths: a", "paths: expected a list, got \"a\"\n  in run.yaml:1"},
                    BadCase{"inner: {steps: null}", "inner.steps: expected an integer, got null\n  in run.yaml:1"},
                    BadCase{"[1, 2]", "run.yaml:1: expected a map of keys at the top, got a list"},
                    BadCase{"flag: [", "run.yaml:1:1: not valid YAML: end of sequence flow not found"}));

TEST(Config, OverrideErrorsPointAtTheCommandLine) {
  EXPECT_EQ(error_of("", {"--inner.step=3"}),
            "inner.step: unknown key (did you mean \"steps\"?)\n  from the command line: --inner.step=...");
  EXPECT_EQ(error_of("", {"--iner.steps=3"}), "iner: unknown key (did you mean \"inner\"?)\n  from the command line: --iner.steps=...");
  EXPECT_EQ(error_of("", {"--flag"}), "override \"--flag\": expected --section.key=value");
  EXPECT_EQ(error_of("flag: true", {"--flag.x=1"}), "override --flag.x: flag is not a section");
}

TEST(Config, SchemaHasTypesLimitsAndDefaults) {
  const auto schema = config_schema<Outer>("Test");
  EXPECT_EQ(schema["additionalProperties"], false);
  const auto& inner = schema["properties"]["inner"]["properties"];
  EXPECT_EQ(inner["steps"].dump(), R"({"description":"Steps.","type":"integer","minimum":1.0,"default":10})");
  EXPECT_EQ(inner["kind"]["enum"].dump(), R"(["adamw","muon"])");
  EXPECT_EQ(schema["properties"]["stop"]["type"].dump(), R"(["integer","null"])");
}

TEST(Config, MarkdownListsEveryKey) {
  const std::string text = config_markdown<Outer>();
  EXPECT_THAT(text, testing::HasSubstr("## `inner`\n\nInner things."));
  EXPECT_THAT(text, testing::HasSubstr("| `lr` | number | `0.001` | Rate. |"));
}

}  // namespace
}  // namespace hyper_parallel
