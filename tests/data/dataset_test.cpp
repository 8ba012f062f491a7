// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/data/permutation.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

// Token i is i mod 251, so a window of the text tells where it lies.
std::shared_ptr<const TokenStream> counting_tokens(int64_t count) {
  auto bytes = std::make_shared<std::string>();
  for (int64_t i = 0; i < count; ++i) bytes->push_back(static_cast<char>(i % 251));
  return std::make_shared<TokenStream>(Text{*bytes, bytes}, *make_tokenizer("byte"));
}

// All samples of `steps` global batches, rank by rank in order.
std::vector<int64_t> global_order(BatchLoader& loader, int steps, int64_t batch_size, int num_ranks) {
  const DataCursor start = loader.cursor();
  std::vector<BatchLoader> ranks(num_ranks, loader);
  std::vector<int64_t> order;
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      const Batch batch = ranks[rank].next(batch_size, rank, num_ranks);
      order.insert(order.end(), batch.samples.begin(), batch.samples.end());
    }
  }
  EXPECT_EQ(loader.cursor(), start) << "copies have their own cursor";
  loader = ranks[0];
  return order;
}

TEST(Permutation, IsOneForEverySize) {
  for (const uint64_t size : {1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4097}) {
    std::vector<bool> seen(size, false);
    const Permutation permutation(size, 3, 1);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t value = permutation(i);
      ASSERT_LT(value, size);
      EXPECT_FALSE(seen[value]);
      seen[value] = true;
    }
  }
}

TEST(Permutation, DependsOnSeedAndRoundAndLooksRandom) {
  const uint64_t size = 10000;
  const Permutation a(size, 1, 0), b(size, 2, 0), c(size, 1, 1), again(size, 1, 0);
  int same_seed = 0, same_round = 0, fixed = 0, rising = 0;
  double correlation = 0;
  for (uint64_t i = 0; i < size; ++i) {
    EXPECT_EQ(a(i), again(i));
    same_seed += a(i) == b(i);
    same_round += a(i) == c(i);
    fixed += a(i) == i;
    if (i > 0) rising += a(i) > a(i - 1);
    correlation += (static_cast<double>(i) / size - 0.5) * (static_cast<double>(a(i)) / size - 0.5) * 12 / size;
  }
  EXPECT_LT(same_seed, 10);
  EXPECT_LT(same_round, 10);
  EXPECT_LT(fixed, 10);
  EXPECT_NEAR(rising, 5000, 200);
  EXPECT_NEAR(correlation, 0, 0.05);
  const Permutation large(uint64_t{1} << 40, 1, 0);
  EXPECT_LT(large((uint64_t{1} << 40) - 1), uint64_t{1} << 40);
}

TEST(PackedDataset, LabelsAreInputsMovedByOne) {
  const PackedDataset dataset(counting_tokens(101), {.sequence_length = 10});
  EXPECT_EQ(dataset.num_train(), 10);
  const std::vector<int64_t> samples{9, 0};
  const Batch batch = dataset.batch(DataPart::kTrain, samples, 3);
  EXPECT_EQ(batch.samples, samples);
  for (int64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(batch.input_ids[i], 90 + i);
    EXPECT_EQ(batch.labels[i], 91 + i);
    EXPECT_EQ(batch.input_ids[10 + i], i);
    EXPECT_EQ(batch.labels[10 + i], 1 + i);
  }
  EXPECT_THAT(std::vector<int64_t>(batch.input_ids.begin() + 20, batch.input_ids.end()), Each(0));
  EXPECT_THAT(std::vector<int64_t>(batch.labels.begin() + 20, batch.labels.end()), Each(kIgnoredLabel));
}

TEST(PackedDataset, PartsAreDisjointAndWhole) {
  for (const int64_t num_sequences : {2, 3, 10, 97, 1000}) {
    for (const double fraction : {0.0, 0.001, 0.01, 0.1, 0.33, 0.5}) {
      const PackedDataset dataset(counting_tokens(num_sequences * 4 + 1), {.sequence_length = 4, .held_out_fraction = fraction});
      std::set<int64_t> seen;
      int64_t previous = -1;
      for (int64_t sample = 0; sample < dataset.num_train(); ++sample) {
        const int64_t sequence = dataset.sequence_of(DataPart::kTrain, sample);
        EXPECT_GT(sequence, std::exchange(previous, sequence));
        EXPECT_TRUE(seen.insert(sequence).second);
      }
      for (int64_t sample = 0; sample < dataset.num_held_out(); ++sample) {
        EXPECT_TRUE(seen.insert(dataset.sequence_of(DataPart::kHeldOut, sample)).second) << num_sequences << " " << fraction;
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), num_sequences);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), num_sequences - 1);
      EXPECT_EQ(dataset.num_held_out() > 0, fraction > 0);
    }
  }
  EXPECT_EQ(PackedDataset(counting_tokens(401), {.sequence_length = 4, .held_out_count = 7}).num_held_out(), 7);
}

TEST(PackedDataset, SaysWhatIsTooShort) {
  const auto error = [](int64_t num_tokens, const PackOptions& options) {
    return message_of<DataError>([&] { PackedDataset dataset(counting_tokens(num_tokens), options); });
  };
  EXPECT_THAT(error(256, {.sequence_length = 256}), HasSubstr("the text has 256 tokens; one sequence of 256 needs 257"));
  EXPECT_EQ(error(257, {.sequence_length = 256}), "no error");
  EXPECT_THAT(error(257, {.sequence_length = 256, .held_out_fraction = 0.1}),
              HasSubstr("nothing left to train on: 257 tokens give 1 sequences of 256, 1 of them held out"));
  EXPECT_THAT(error(257, {.sequence_length = 4, .held_out_count = 64}), HasSubstr("nothing left to train on"));
  EXPECT_THAT(error(257, {.sequence_length = 0}), HasSubstr("must be at least 1"));
  EXPECT_THAT(error(257, {.sequence_length = 4, .held_out_fraction = 1.0}), HasSubstr("must be in [0, 1)"));
}

TEST(BatchLoader, EverySampleOnceAnEpoch) {
  BatchLoader loader(PackedDataset(counting_tokens(431), {.sequence_length = 10}), {.seed = 5});
  const int64_t size = loader.dataset().num_train();
  ASSERT_EQ(size, 43);
  const std::vector<int64_t> order = global_order(loader, 43, 4, 1);  // 4 epochs, batches reach over their ends
  std::vector<std::vector<int64_t>> epochs;
  for (int epoch = 0; epoch < 4; ++epoch) {
    epochs.emplace_back(order.begin() + epoch * size, order.begin() + (epoch + 1) * size);
    std::vector<int64_t> sorted = epochs.back();
    std::sort(sorted.begin(), sorted.end());
    std::vector<int64_t> all(size);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(sorted, all);
    EXPECT_NE(epochs.back(), all) << "shuffled";
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_EQ(loader.cursor(), (DataCursor{4, 0, 43}));
}

TEST(BatchLoader, OrderIgnoresTheWorldSizeAlsoAfterAResume) {
  const PackedDataset dataset(counting_tokens(1001), {.sequence_length = 8, .held_out_fraction = 0.05});
  BatchLoader reference(dataset, {.seed = 9});
  const std::vector<int64_t> expected = global_order(reference, 40, 12, 1);
  for (const int before : {1, 2, 3, 4, 8}) {
    for (const int after : {1, 2, 3, 4, 8}) {
      BatchLoader loader(dataset, {.seed = 9});
      std::vector<int64_t> order = global_order(loader, 13, 12, before);
      const nlohmann::json saved = loader.cursor();
      BatchLoader resumed(dataset, {.seed = 9});
      resumed.seek(nlohmann::json::parse(saved.dump()).get<DataCursor>());
      const std::vector<int64_t> rest = global_order(resumed, 27, 12, after);
      order.insert(order.end(), rest.begin(), rest.end());
      EXPECT_EQ(order, expected) << before << " " << after;
    }
  }
}

TEST(BatchLoader, UnevenBatchesArePadded) {
  BatchLoader loader(PackedDataset(counting_tokens(101), {.sequence_length = 5}), {.shuffle = false});
  std::vector<int64_t> samples;
  for (int rank = 0; rank < 4; ++rank) {
    BatchLoader mine = loader;
    const Batch batch = mine.next(6, rank, 4);
    EXPECT_EQ(batch.num_rows, 2);
    EXPECT_EQ(batch.samples.size(), rank < 2 ? 2u : 1u);
    if (rank >= 2) {
      EXPECT_THAT(std::vector<int64_t>(batch.labels.begin() + 5, batch.labels.end()), Each(kIgnoredLabel));
    }
    samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
  }
  EXPECT_EQ(samples, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
}

TEST(BatchLoader, HeldOutBatchesDoNotMoveTheCursor) {
  const BatchLoader loader(PackedDataset(counting_tokens(101), {.sequence_length = 5, .held_out_count = 5}), {.seed = 1});
  std::vector<int64_t> samples;
  for (int64_t first = 0; first < 6; first += 4) {
    for (int rank = 0; rank < 3; ++rank) {
      const Batch batch = loader.held_out(first, 4, rank, 3);
      EXPECT_EQ(batch.num_rows, first == 0 ? 2 : 1);
      samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
    }
  }
  EXPECT_EQ(samples, (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(loader.held_out(8, 4, 0, 3).num_rows, 0);
  EXPECT_EQ(loader.cursor(), (DataCursor{0, 0, 15}));
}

TEST(BatchLoader, RejectsCursorsOfOtherData) {
  BatchLoader loader(PackedDataset(counting_tokens(101), {.sequence_length = 5}));
  EXPECT_THAT(message_of<DataError>([&] {
                loader.seek({1, 3, 21});
              }),
              AllOf(HasSubstr("the data changed since the checkpoint"), HasSubstr("counts 21 training sequences, the data has 20")));
  EXPECT_THAT(message_of<DataError>([&] { nlohmann::json::parse(R"({"epoch":0,"position":-1,"num_samples":3})").get<DataCursor>(); }),
              HasSubstr("position must be an integer >= 0"));
  EXPECT_THAT(message_of<DataError>([&] { nlohmann::json::parse("[]").get<DataCursor>(); }), HasSubstr("epoch must be"));
}

}  // namespace
}  // namespace hyper_parallel
