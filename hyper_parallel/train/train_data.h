// SPDX-License-Identifier: Apache-2.0
// The batches of a run: text files, tokenizer, packing and the cursor of data/, as tensors for this rank's microbatches.
//
//   TrainData data(loaded, world.group());
//   StepBatch batch = data.next();          // this rank's part of the next global batch
//
// Which samples a step sees depends on the seed and the step alone, never on the number of ranks.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hyper_parallel/data/tokenizer.h"
#include "hyper_parallel/train/train_config.h"
#include "hyper_parallel/train/train_step.h"

namespace hyper_parallel {

// Whether the files of dataset.paths are there, before any rank starts. ConfigError with key and line.
void check_train_data(const LoadedConfig& loaded);

struct StepBatch {
  std::vector<MicroBatch> micro_batches;
  std::vector<int64_t> samples;  // their numbers in the training part, in order
};

class TrainData {
 public:
  // `group`: the data-parallel ranks. ConfigError with key and line: no such file, too little text.
  TrainData(const LoadedConfig& loaded, const ProcessGroup& group);
  ~TrainData();

  StepBatch next();
  // Up to num_batches global batches of the held-out part, always the same; this rank's part, padded with ignored labels.
  std::vector<MicroBatch> held_out(int64_t num_batches) const;

  nlohmann::json cursor() const;
  void seek(const nlohmann::json& cursor);

  const Tokenizer& tokenizer() const;
  std::string describe() const;  // "9876 sequences of 256 tokens, 99 held out"

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hyper_parallel
