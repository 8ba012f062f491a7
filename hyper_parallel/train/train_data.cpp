// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/train/train_data.h"

#include <ATen/ops/from_blob.h>

#include "hyper_parallel/base/string.h"
#include "hyper_parallel/data/dataset.h"
#include "hyper_parallel/data/text.h"

namespace hyper_parallel {
namespace {

at::Tensor rows_of(const std::vector<int64_t>& values, const Batch& batch, int64_t begin, int64_t count) {
  auto* first = const_cast<int64_t*>(values.data()) + begin * batch.sequence_length;
  return at::from_blob(first, {count, batch.sequence_length}, at::kLong).clone();
}

std::vector<MicroBatch> cut(const Batch& batch, int64_t micro_batch_size) {
  std::vector<MicroBatch> parts;
  for (int64_t begin = 0; begin < batch.num_rows; begin += micro_batch_size) {
    const int64_t count = std::min(micro_batch_size, batch.num_rows - begin);
    parts.push_back({rows_of(batch.input_ids, batch, begin, count), rows_of(batch.labels, batch, begin, count)});
  }
  return parts;
}

PackedDataset open_dataset(const LoadedConfig& loaded) {
  const DatasetConfig& dataset = loaded.config.dataset;
  try {
    return PackedDataset(load_tokens({.paths = dataset.paths, .max_bytes = dataset.max_bytes}, dataset.tokenizer),
                         {.sequence_length = dataset.sequence_length, .held_out_fraction = dataset.held_out_fraction});
  } catch (const DataError& error) {
    throw loaded.document.error("dataset.paths", error.what());
  }
}

}  // namespace

void check_train_data(const LoadedConfig& loaded) {
  try {
    expand_paths(loaded.config.dataset.paths);
  } catch (const DataError& error) {
    throw loaded.document.error("dataset.paths", error.what());
  }
}

class TrainData::Impl {
 public:
  Impl(const LoadedConfig& loaded, const ProcessGroup& group)
      : group_(group),
        training_(loaded.config.training),
        tokenizer_(make_tokenizer(loaded.config.dataset.tokenizer)),
        loader_(open_dataset(loaded), {.seed = static_cast<uint64_t>(training_.seed)}) {}

  StepBatch next() {
    const Batch batch = loader_.next(training_.global_batch_size, group_.rank(), group_.size());
    return {cut(batch, training_.micro_batch_size), batch.samples};
  }

  std::vector<MicroBatch> held_out(int64_t num_batches) const {
    const int64_t count = std::min(num_batches * training_.global_batch_size, loader_.dataset().num_held_out());
    return cut(loader_.held_out(0, count, group_.rank(), group_.size()), training_.micro_batch_size);
  }

  const ProcessGroup group_;
  const TrainingConfig training_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  BatchLoader loader_;
};

TrainData::TrainData(const LoadedConfig& loaded, const ProcessGroup& group) : impl_(std::make_unique<Impl>(loaded, group)) {}
TrainData::~TrainData() = default;
StepBatch TrainData::next() { return impl_->next(); }
std::vector<MicroBatch> TrainData::held_out(int64_t num_batches) const { return impl_->held_out(num_batches); }
nlohmann::json TrainData::cursor() const { return impl_->loader_.cursor(); }
void TrainData::seek(const nlohmann::json& cursor) { impl_->loader_.seek(cursor.get<DataCursor>()); }
const Tokenizer& TrainData::tokenizer() const { return *impl_->tokenizer_; }

std::string TrainData::describe() const {
  const PackedDataset& dataset = impl_->loader_.dataset();
  return str(dataset.num_train(), " sequences of ", dataset.sequence_length(), " tokens to train on, ", dataset.num_held_out(),
             " held out");
}

}  // namespace hyper_parallel
