// SPDX-License-Identifier: Apache-2.0
// Training configurations in the documents are what the program accepts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tests/cli/support/run.h"

namespace hyper_parallel {
namespace {

using namespace test;
using testing::HasSubstr;

struct Block {
  std::string where;  // "README.md:15"
  std::string text;
  bool has(const std::string& key) const { return ("\n" + text).find("\n" + key + ":") != std::string::npos; }
};

// The ```yaml blocks of a Markdown file.
std::vector<Block> yaml_blocks(const fs::path& document) {
  std::vector<Block> blocks;
  std::ifstream file(document);
  bool inside = false;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const bool fence = line.starts_with("```");
    if (fence && !inside && line.starts_with("```yaml"))
      blocks.push_back({document.filename().string() + ":" + std::to_string(number), ""}), inside = true;
    else if (fence)
      inside = false;
    else if (inside)
      blocks.back().text += line + "\n";
  }
  EXPECT_FALSE(inside) << document << ": the last block has no end";
  return blocks;
}

std::vector<Block> whole_configurations() {
  std::vector<fs::path> documents = {source_root() / "README.md"};
  for (const auto& entry : fs::directory_iterator(source_root() / "docs"))
    if (entry.path().extension() == ".md") documents.push_back(entry.path());
  std::vector<Block> whole;
  for (const fs::path& document : documents)
    for (const Block& block : yaml_blocks(document))
      if (block.has("model") && block.has("dataset")) whole.push_back(block);
  return whole;
}

TEST(Documents, WholeConfigurationsAreAccepted) {
  const TemporaryFolder folder;
  const std::vector<Block> blocks = whole_configurations();
  EXPECT_TRUE(std::any_of(blocks.begin(), blocks.end(), [](const Block& block) { return block.where.starts_with("README.md:"); }));
  for (const Block& block : blocks) {
    const fs::path path = folder.write("run.yaml", block.text);
    const Outcome outcome = hyper_parallel({"config", "check", path});
    EXPECT_EQ(outcome.exit_code, 0) << block.where << ": " << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(path.string() + ": ok (")) << block.where;
  }
}

// The first thing that a reader does with it.
TEST(Documents, TheReadmesConfigurationTrains) {
  const TemporaryFolder folder;
  const TrainFolder texts;
  fs::create_directory(folder / "texts");
  fs::copy_file(texts.text(), folder / "texts/a.txt");
  for (const Block& block : whole_configurations()) {
    if (!block.where.starts_with("README.md:")) continue;
    folder.write("my_run.yaml", block.text);
    const std::string shorter = " --training.stop_at_step=1 --training.eval_steps=0 --sample.max_new_tokens=4";
    const Outcome outcome =
        run_program({"sh", "-c", "cd '" + folder.path().string() + "' && '" + binary().string() + "' train my_run.yaml" + shorter},
                    std::chrono::seconds(60), environment());
    EXPECT_EQ(outcome.exit_code, 0) << block.where << ": " << outcome.output;
    EXPECT_TRUE(fs::exists(folder / "outputs/my_run/checkpoints/step-000001/metadata.json")) << outcome.output;
  }
}

}  // namespace
}  // namespace hyper_parallel
