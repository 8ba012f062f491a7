// SPDX-License-Identifier: Apache-2.0
// Fixed-length training sequences out of a token stream, and the order in which training sees them.
//
//   PackedDataset dataset(load_tokens({.paths = {"corpus.txt"}}, "byte"), {.sequence_length = 256, .held_out_fraction = 0.01});
//   BatchLoader loader(dataset, {.seed = 1});
//   Batch batch = loader.next(/*global_batch_size=*/8, /*rank=*/0, /*num_ranks=*/2);     // 4 rows
//
// Sequence s has the tokens [s * L, s * L + L] of the stream: L inputs, and the same moved by one as labels, so that every token but the
// first is a label exactly once. The held-out sequences are spread evenly over the text. A sample number counts within its part: train or
// held-out.
//
// The k-th sample that training sees is a function of (seed, k): epoch = k / num_train, and within it a permutation. Neither the number of
// ranks nor the batch size plays a part, so a cursor resumes on any number of ranks with the same order of samples.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "hyper_parallel/data/token_stream.h"

namespace hyper_parallel {

inline constexpr int64_t kIgnoredLabel = -100;

struct PackOptions {
  int64_t sequence_length = 256;
  double held_out_fraction = 0;  // of the sequences, rounded, at least one if > 0
  int64_t held_out_count = 0;    // instead of the fraction
};

enum class DataPart { kTrain, kHeldOut };

// Row-major [num_rows, sequence_length].
struct Batch {
  int64_t num_rows = 0, sequence_length = 0;
  std::vector<int64_t> input_ids, labels;
  std::vector<int64_t> samples;  // of the first rows; rows after them are padding: inputs 0, labels kIgnoredLabel
};

class PackedDataset {
 public:
  // DataError, with the numbers: fewer tokens than one sequence needs, nothing left to train on, a fraction outside [0, 1).
  PackedDataset(std::shared_ptr<const TokenStream> tokens, const PackOptions& options);
  int64_t sequence_length() const { return options_.sequence_length; }
  int64_t num_tokens() const { return tokens_->size(); }
  int64_t num_train() const { return num_sequences_ - num_held_out_; }
  int64_t num_held_out() const { return num_held_out_; }
  int64_t num_samples(DataPart part) const { return part == DataPart::kTrain ? num_train() : num_held_out_; }
  int64_t sequence_of(DataPart part, int64_t sample) const;  // its place in the text
  // The samples as rows, then padding up to num_rows.
  Batch batch(DataPart part, std::span<const int64_t> samples, int64_t num_rows) const;

 private:
  int64_t held_out_sequence(int64_t sample) const;
  std::shared_ptr<const TokenStream> tokens_;
  PackOptions options_;
  int64_t num_sequences_ = 0, num_held_out_ = 0;
};

// The part [first, first + count) of `total` items that falls to `rank`: as even as whole items allow, earlier ranks hold more.
struct RankShare {
  int64_t first, count, max_count;  // max_count: of any rank
};
RankShare share_of_rank(int64_t total, int rank, int num_ranks);

struct DataCursor {
  int64_t epoch = 0;
  int64_t position = 0;     // samples of this epoch that were seen
  int64_t num_samples = 0;  // of the training part, to notice that the data changed
  bool operator==(const DataCursor&) const = default;
};
void to_json(nlohmann::json& json, const DataCursor& cursor);
void from_json(const nlohmann::json& json, DataCursor& cursor);  // DataError says what is wrong

struct LoaderOptions {
  uint64_t seed = 0;
  bool shuffle = true;
};

class BatchLoader {
 public:
  BatchLoader(PackedDataset dataset, const LoaderOptions& options = {});
  const PackedDataset& dataset() const { return dataset_; }
  // This rank's rows of the next global batch; moves the cursor by the whole of it. All ranks get equally many rows: the last row is
  // padding where num_ranks does not divide the batch. A batch may reach into the next epoch.
  Batch next(int64_t global_batch_size, int rank, int num_ranks);
  // Held-out samples [first, first + count), cut at the end of the part; this rank's rows, padded likewise.
  Batch held_out(int64_t first, int64_t count, int rank, int num_ranks) const;
  // The k-th sample of training.
  int64_t sample(int64_t k) const;

  DataCursor cursor() const;
  // DataError if the cursor was made on a training part of another size.
  void seek(const DataCursor& cursor);

 private:
  PackedDataset dataset_;
  LoaderOptions options_;
  int64_t num_seen_ = 0;
};

}  // namespace hyper_parallel
