// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/support/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace hyper_parallel::test {
namespace {

// English-like: few words, so that a small model learns something within a few steps.
std::string sample_text() {
  const Strings words = {"the ", "river ", "runs ", "under ", "a ", "stone ", "bridge ", "and ", "then ", "down ", "to ", "sea.\n"};
  std::string text;
  for (uint32_t state = 1; text.size() < 20'000; state = state * 1664525 + 1013904223) text += words[(state >> 16) % words.size()];
  return text;
}

constexpr const char* kConfig = R"(launcher: { ranks: 2, rank_mode: threads, timeout_seconds: 60 }
model:
  type: qwen3
  config:
    vocab_size: 260
    hidden_size: 32
    num_hidden_layers: 2
    num_attention_heads: 2
    num_key_value_heads: 1
    head_dim: 16
    intermediate_size: 64
    max_position_embeddings: 128
    tie_word_embeddings: true
optimizer: { lr: 5.0e-3 }
lr_scheduler: { type: cosine, warmup_iters: 2 }
training: { train_iters: 6, global_batch_size: 24, micro_batch_size: 2, seed: 3 }
dataset: { paths: [TEXT], sequence_length: 32, held_out_fraction: 0.05 }
)";

}  // namespace

fs::path binary() { return path_from("HYPER_PARALLEL_BINARY"); }

Strings environment(const Strings& more) {
  Strings all = {"OMP_NUM_THREADS=1", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "HYPER_PARALLEL_FAULT",
                 "HYPER_PARALLEL_LOG"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Outcome hyper_parallel(const Strings& arguments, const Strings& more_environment) {
  Strings argv = {binary()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run_program(argv, std::chrono::seconds(60), environment(more_environment));
}

std::vector<Outcome> hyper_parallel_each(const std::vector<Strings>& commands) {
  const auto start = [](const Strings& arguments) {
    Strings argv = {binary()};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return std::make_unique<Program>(argv, environment());
  };
  std::vector<Outcome> outcomes;
  std::unique_ptr<Program> next;
  for (size_t i = 0; i < commands.size(); ++i) {
    std::unique_ptr<Program> current = next ? std::move(next) : start(commands[i]);
    if (i + 1 < commands.size()) next = start(commands[i + 1]);
    outcomes.push_back(current->finish(std::chrono::seconds(60)));
  }
  return outcomes;
}

Strings RunOutput::metric(const std::string& key) const {
  std::ifstream file(folder / "metrics.jsonl");
  Strings values;
  const std::string start = "\"" + key + "\":";
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(start);
    values.push_back(at == std::string::npos ? "" : line.substr(at + start.size(), line.find_first_of(",}", at) - at - start.size()));
  }
  return values;
}

std::vector<double> RunOutput::numbers(const std::string& key) const {
  std::vector<double> values;
  for (const std::string& text : metric(key)) values.push_back(std::strtod(text.c_str(), nullptr));
  return values;
}

fs::path RunOutput::checkpoint(int step) const {
  const std::string number = std::to_string(step);
  return folder / "checkpoints" / ("step-" + std::string(6 - number.size(), '0') + number);
}

std::string RunOutput::latest() const {
  const std::string text = read_text(folder / "checkpoints/LATEST");
  return text.substr(0, text.find('\n'));
}

std::string RunOutput::tensor_bytes(int step) const {
  Strings files;
  for (const auto& entry : fs::directory_iterator(checkpoint(step)))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::string bytes;
  for (const std::string& file : files) bytes += fs::path(file).filename().string() + "\n" + read_text(file);
  return bytes;
}

TrainFolder::TrainFolder() {
  write_text(text(), sample_text());
  std::string config_text = kConfig;
  config_text.replace(config_text.find("TEXT"), 4, text());
  write_text(config(), config_text);
}

Strings TrainFolder::arguments(const std::string& output, const Strings& overrides) const {
  Strings all = {"train", config(), "--output_dir=" + (folder_ / output).string()};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return all;
}

Outcome TrainFolder::train(const std::string& output, const Strings& overrides, const Strings& more_environment) const {
  return hyper_parallel(arguments(output, overrides), more_environment);
}

RunOutput TrainFolder::run(const std::string& name, const Strings& overrides, const Strings& more_environment) const {
  const Outcome outcome = train(name, overrides, more_environment);
  EXPECT_EQ(outcome.exit_code, 0) << name << ": " << outcome.output;
  return output(name);
}

std::vector<RunOutput> TrainFolder::run_each(const std::vector<std::pair<std::string, Strings>>& runs) const {
  std::vector<Strings> commands;
  for (const auto& [name, overrides] : runs) commands.push_back(arguments(name, overrides));
  const std::vector<Outcome> outcomes = hyper_parallel_each(commands);
  std::vector<RunOutput> outputs;
  for (size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(outcomes[i].exit_code, 0) << runs[i].first << ": " << outcomes[i].output;
    outputs.push_back(output(runs[i].first));
  }
  return outputs;
}

std::vector<pid_t> children_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/task/" + std::to_string(process) + "/children");
  std::vector<pid_t> children;
  for (pid_t child; file >> child;) children.push_back(child);
  return children;
}

}  // namespace hyper_parallel::test
