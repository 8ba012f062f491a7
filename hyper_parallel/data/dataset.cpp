// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/data/dataset.h"

#include <algorithm>
#include <cmath>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/data/permutation.h"

namespace hyper_parallel {

PackedDataset::PackedDataset(std::shared_ptr<const TokenStream> tokens, const PackOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  const int64_t length = options.sequence_length, num_tokens = tokens_->size();
  if (length < 1) throw DataError(str("sequence length ", length, " must be at least 1"));
  if (!(options.held_out_fraction >= 0 && options.held_out_fraction < 1) || options.held_out_count < 0) {
    throw DataError(
        str("held-out fraction ", options.held_out_fraction, " must be in [0, 1), held-out count ", options.held_out_count, " at least 0"));
  }
  num_sequences_ = (num_tokens - 1) / length;
  if (num_sequences_ < 1) throw DataError(str("the text has ", num_tokens, " tokens; one sequence of ", length, " needs ", length + 1));
  num_held_out_ = options.held_out_count;
  if (num_held_out_ == 0 && options.held_out_fraction > 0) {
    num_held_out_ = std::max<int64_t>(1, std::llround(options.held_out_fraction * static_cast<double>(num_sequences_)));
  }
  if (num_held_out_ >= num_sequences_) {
    throw DataError(str("nothing left to train on: ", num_tokens, " tokens give ", num_sequences_, " sequences of ", length, ", ",
                        num_held_out_, " of them held out"));
  }
}

// Sample h of H lies in the middle of the h-th of H equal parts of the text.
int64_t PackedDataset::held_out_sequence(int64_t sample) const {
  return static_cast<int64_t>(static_cast<__int128>(2 * sample + 1) * num_sequences_ / (2 * num_held_out_));
}

int64_t PackedDataset::sequence_of(DataPart part, int64_t sample) const {
  HYPER_PARALLEL_CHECK(sample >= 0 && sample < num_samples(part), sample, " of ", num_samples(part));
  if (part == DataPart::kHeldOut) return held_out_sequence(sample);
  // Before the h-th held-out sequence lie held_out_sequence(h) - h training ones: find how many held-out ones precede this sample.
  int64_t low = 0, high = num_held_out_;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (held_out_sequence(middle) - middle > sample)
      high = middle;
    else
      low = middle + 1;
  }
  return sample + low;
}

Batch PackedDataset::batch(DataPart part, std::span<const int64_t> samples, int64_t num_rows) const {
  const int64_t length = options_.sequence_length;
  HYPER_PARALLEL_CHECK(static_cast<int64_t>(samples.size()) <= num_rows, samples.size(), " samples in ", num_rows, " rows");
  Batch batch{num_rows,
              length,
              std::vector<int64_t>(num_rows * length, 0),
              std::vector<int64_t>(num_rows * length, kIgnoredLabel),
              {samples.begin(), samples.end()}};
  for (size_t row = 0; row < samples.size(); ++row) {
    const int64_t begin = sequence_of(part, samples[row]) * length;
    tokens_->copy(begin, length, batch.input_ids.data() + row * length);
    tokens_->copy(begin + 1, length, batch.labels.data() + row * length);
  }
  return batch;
}

RankShare share_of_rank(int64_t total, int rank, int num_ranks) {
  HYPER_PARALLEL_CHECK(num_ranks > 0 && rank >= 0 && rank < num_ranks, "rank ", rank, " of ", num_ranks);
  const int64_t base = total / num_ranks, rest = total % num_ranks;
  return {rank * base + std::min<int64_t>(rank, rest), base + (rank < rest ? 1 : 0), base + (rest > 0 ? 1 : 0)};
}

void to_json(nlohmann::json& json, const DataCursor& cursor) {
  json = {{"epoch", cursor.epoch}, {"position", cursor.position}, {"num_samples", cursor.num_samples}};
}

void from_json(const nlohmann::json& json, DataCursor& cursor) {
  const auto number = [&](const char* key) {
    const bool valid = json.is_object() && json.contains(key) && json[key].is_number_integer() && json[key].get<int64_t>() >= 0;
    if (!valid) throw DataError(str("data cursor ", json.dump(), ": ", key, " must be an integer >= 0"));
    return json[key].get<int64_t>();
  };
  cursor = {number("epoch"), number("position"), number("num_samples")};
}

BatchLoader::BatchLoader(PackedDataset dataset, const LoaderOptions& options) : dataset_(std::move(dataset)), options_(options) {}

int64_t BatchLoader::sample(int64_t k) const {
  const int64_t size = dataset_.num_train(), epoch = k / size, position = k % size;
  if (!options_.shuffle) return position;
  return static_cast<int64_t>(Permutation(size, options_.seed, epoch)(position));
}

Batch BatchLoader::next(int64_t global_batch_size, int rank, int num_ranks) {
  HYPER_PARALLEL_CHECK(global_batch_size > 0, "global batch of ", global_batch_size);
  const RankShare share = share_of_rank(global_batch_size, rank, num_ranks);
  std::vector<int64_t> samples(share.count);
  for (int64_t row = 0; row < share.count; ++row) samples[row] = sample(num_seen_ + share.first + row);
  num_seen_ += global_batch_size;
  return dataset_.batch(DataPart::kTrain, samples, share.max_count);
}

Batch BatchLoader::held_out(int64_t first, int64_t count, int rank, int num_ranks) const {
  const int64_t begin = std::clamp<int64_t>(first, 0, dataset_.num_held_out());
  const RankShare share = share_of_rank(std::min(count, dataset_.num_held_out() - begin), rank, num_ranks);
  std::vector<int64_t> samples(share.count);
  for (int64_t row = 0; row < share.count; ++row) samples[row] = begin + share.first + row;
  return dataset_.batch(DataPart::kHeldOut, samples, share.max_count);
}

DataCursor BatchLoader::cursor() const {
  return {num_seen_ / dataset_.num_train(), num_seen_ % dataset_.num_train(), dataset_.num_train()};
}

void BatchLoader::seek(const DataCursor& cursor) {
  if (cursor.num_samples != dataset_.num_train() || cursor.position < 0 || cursor.position >= cursor.num_samples || cursor.epoch < 0) {
    throw DataError(str("the data changed since the checkpoint: its cursor (epoch ", cursor.epoch, ", position ", cursor.position,
                        ") counts ", cursor.num_samples, " training sequences, the data has ", dataset_.num_train()));
  }
  num_seen_ = cursor.epoch * cursor.num_samples + cursor.position;
}

}  // namespace hyper_parallel
