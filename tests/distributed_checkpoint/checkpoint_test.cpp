// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"
#include "tests/distributed_checkpoint/support/layouts.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
namespace fs = std::filesystem;

class Checkpoint : public testing::Test {
 protected:
  void save(int num_ranks, Holding holding, const std::string& name = "step-000001", const SaveOptions& options = {}) {
    run_threads(num_ranks, [&](World& world) {
      save_checkpoint(world.group(), folder_ / name, {state_of(tensors_, holding, world.rank(), world.size()), extra_}, options);
    });
  }
  void expect_loads(int num_ranks, Holding holding, const std::string& name = "step-000001") {
    run_threads(num_ranks, [&](World& world) {
      const StateDict expected = state_of(tensors_, holding, world.rank(), world.size());
      const StateDict loaded = blank_like(expected);
      EXPECT_EQ(load_checkpoint(world.group(), folder_ / name, loaded), extra_);
      for (size_t index = 0; index < expected.size(); ++index) {
        EXPECT_TRUE(same_bytes(loaded[index].local, expected[index].local))
            << expected[index].name << " on " << world.rank() << "/" << world.size();
      }
    });
  }
  std::string load_error(int num_ranks, const GlobalTensors& tensors, const LoadOptions& options = {}) {
    return message_of<CheckpointError>([&] {
      run_threads(num_ranks, [&](World& world) {
        load_checkpoint(world.group(), folder_ / "step-000001", state_of(tensors, Holding::kFlat, world.rank(), world.size()), options);
      });
    });
  }
  TemporaryFolder folder_;
  GlobalTensors tensors_ = sample_state();
  nlohmann::json extra_{{"step", 100}, {"rate", 0.1}, {"cursor", {1, 2, 3}}, {"name", "r\xc3\xa9sum\xc3\xa9"}};
};

TEST_F(Checkpoint, AnyLayoutToAnyLayout) {
  for (const int saving_ranks : {1, 2, 3, 4, 8}) {
    for (const Holding saved : kAllHoldings) {
      save(saving_ranks, saved);
      for (const int loading_ranks : {1, 3, 4}) {
        for (const Holding loaded : {Holding::kReplicated, Holding::kFlat, Holding::kBlocks}) expect_loads(loading_ranks, loaded);
      }
      ASSERT_FALSE(HasFailure()) << "saved by " << saving_ranks << " ranks, holding " << static_cast<int>(saved);
    }
  }
}

TEST_F(Checkpoint, EveryLayoutLoads) {
  save(4, Holding::kFlat);
  for (const int ranks : {1, 2, 3, 8}) {
    for (const Holding holding : kAllHoldings) expect_loads(ranks, holding);
  }
}

TEST_F(Checkpoint, ReplicasWriteOnceAndShareTheWork) {
  tensors_.clear();
  for (int index = 0; index < 8; ++index) tensors_.emplace_back("w" + std::to_string(index), at::randn({64, 16}));
  save(4, Holding::kReplicated);
  const CheckpointMetadata metadata = inspect_checkpoint(folder_ / "step-000001");
  EXPECT_EQ(metadata.num_ranks, 4);
  ASSERT_EQ(metadata.files.size(), 4u);
  for (const CheckpointTensor& tensor : metadata.tensors) EXPECT_EQ(tensor.pieces.size(), 1u) << tensor.name;
  for (const CheckpointFile& file : metadata.files) EXPECT_EQ(SafetensorsFile(folder_ / "step-000001" / file.name).tensors().size(), 2u);
  EXPECT_EQ(metadata.num_bytes(), 8 * 64 * 16 * 4);
}

TEST_F(Checkpoint, FilesAreSafetensorsWithReadableKeys) {
  tensors_ = {{"w", at::randn({4, 2})}};
  save(2, Holding::kRows);
  const SafetensorsFile file(folder_ / "step-000001/rank-00001.safetensors");
  EXPECT_TRUE(at::equal(file.read("w[2:4, 0:2]"), tensors_[0].second.narrow(0, 2, 2)));
}

TEST_F(Checkpoint, InspectAndReader) {
  save(3, Holding::kMixed);
  const CheckpointMetadata metadata = inspect_checkpoint(folder_ / "step-000001");
  EXPECT_EQ(metadata.tensors.size(), tensors_.size());
  EXPECT_EQ(metadata.extra, extra_);
  EXPECT_EQ(metadata.find("model.up.weight")->sizes, (std::vector<int64_t>{100, 33}));
  EXPECT_EQ(metadata.find("model.norm.weight")->dtype, at::kBFloat16);
  CheckpointReader reader(folder_ / "step-000001");
  for (const auto& [name, tensor] : tensors_) EXPECT_TRUE(same_bytes(reader.read(name), tensor)) << name;
  at::Tensor block = at::empty({3, 2}, at::kDouble);
  reader.read_box("model.up.weight", {{50, 30}, {3, 2}}, block);
  EXPECT_TRUE(at::equal(block, tensors_[5].second.narrow(0, 50, 3).narrow(1, 30, 2).to(at::kDouble)));
  EXPECT_THAT(message_of<CheckpointError>([&] { reader.read("model.up.wieght"); }), HasSubstr("did you mean \"model.up.weight\"?"));
  EXPECT_THAT(message_of<CheckpointError>([&] {
                reader.read_box("mask", {{10}, {4}}, at::empty({4}, at::kBool));
              }),
              HasSubstr("not inside shape [13]"));
}

TEST_F(Checkpoint, ListsAllKeysThatDoNotFit) {
  save(2, Holding::kFlat);
  GlobalTensors wanted = tensors_;
  wanted[0].second = at::zeros({5, 7});
  wanted[1].second = wanted[1].second.to(at::kFloat);
  wanted[2].first = "optimizer.stop";
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(load_error(ranks, wanted), AllOf(HasSubstr("step-000001: does not fit the state to load"),
                                                 HasSubstr("missing in the checkpoint (1):\n    optimizer.stop"),
                                                 HasSubstr("only in the checkpoint (1):\n    optimizer.step"),
                                                 HasSubstr("model.embed.weight: saved with shape [7, 5], wanted [5, 7]"),
                                                 HasSubstr("model.norm.weight: saved as BF16, wanted F32")));
  }
  GlobalTensors none;
  for (int index = 0; index < 14; ++index) none.emplace_back("x" + std::to_string(index), at::zeros({1}));
  EXPECT_THAT(load_error(1, none, {.allow_extra = true}),
              AllOf(HasSubstr("missing in the checkpoint (14)"), HasSubstr("and 4 more"), Not(HasSubstr("only in"))));
}

TEST_F(Checkpoint, OptionsAllowWhatDoesNotFit) {
  save(2, Holding::kFlat);
  const at::Tensor norm = at::zeros({3, 1, 4}), other = at::zeros({2});
  run_threads(2, [&](World& world) {
    if (world.rank() != 0) {
      load_checkpoint(world.group(), folder_ / "step-000001", {}, {.allow_extra = true});
      return;
    }
    load_checkpoint(world.group(), folder_ / "step-000001", {whole_entry("model.norm.weight", norm), whole_entry("other", other)},
                    {.allow_missing = true, .allow_extra = true, .convert_dtypes = true});
  });
  EXPECT_TRUE(at::equal(norm, tensors_[1].second.to(at::kFloat)));
  EXPECT_TRUE(at::equal(other, at::zeros({2})));
}

// As with pipeline stages: no rank knows all names.
TEST_F(Checkpoint, RanksMayHoldDifferentNames) {
  run_threads(2, [&](World& world) {
    const auto& [name, tensor] = tensors_[world.rank()];
    save_checkpoint(world.group(), folder_ / "step-000001", {{whole_entry(name, tensor)}, extra_});
    const auto& [other_name, other] = tensors_[1 - world.rank()];
    const StateDict loaded = blank_like({whole_entry(other_name, other)});
    load_checkpoint(world.group(), folder_ / "step-000001", loaded);
    EXPECT_TRUE(same_bytes(loaded[0].local, other));
  });
}

TEST_F(Checkpoint, RejectsStatesThatAreNotWhole) {
  const at::Tensor tensor = at::zeros({4, 3});
  const auto error = [&](const std::function<StateDict(int)>& state) {
    return message_of<CheckpointError>([&] {
      run_threads(2, [&](World& world) { save_checkpoint(world.group(), folder_ / "step-000001", {state(world.rank()), {}}); });
    });
  };
  EXPECT_THAT(error([&](int) {
                return StateDict{whole_entry("w", tensor), whole_entry("w", tensor)};
              }),
              HasSubstr("state entry \"w\" is given twice"));
  EXPECT_THAT(error([&](int rank) {
                return StateDict{range_entry("w", {4, 3}, at::zeros({3}), 3 * rank)};
              }),
              HasSubstr("tensor \"w\" of shape [4, 3]: no rank holds the box at [2, 0] of [2, 3]"));
  EXPECT_THAT(error([&](int rank) { return StateDict{whole_entry("w", at::zeros({4 + rank}))}; }),
              HasSubstr("tensor \"w\" is F32 [4] on rank 0 and F32 [5] on rank 1"));
  EXPECT_THAT(error([&](int rank) { return StateDict{whole_entry("w", at::zeros({4}, rank == 0 ? at::kFloat : at::kDouble))}; }),
              HasSubstr("F32 [4] on rank 0 and F64 [4] on rank 1"));
  EXPECT_THAT(error([&](int) {
                return StateDict{StateEntry{"w", {4}, at::zeros({2}), {Box{{3}, {2}}}}};
              }),
              HasSubstr("box at [3] of [2] is not inside shape [4]"));
  EXPECT_THAT(error([&](int) { return StateDict{whole_entry("w", at::zeros({1}, at::kComplexDouble))}; }),
              HasSubstr("no safetensors name"));
  EXPECT_TRUE(fs::is_empty(folder_.path())) << "no temporary folder stays";
}

TEST_F(Checkpoint, OverlappingBoxesAreAllowed) {
  const at::Tensor tensor = at::randn({6});
  run_threads(2, [&](World& world) {
    const StateDict state{range_entry("w", {6}, tensor.narrow(0, 2 * world.rank(), 4).clone(), 2 * world.rank())};
    save_checkpoint(world.group(), folder_ / "step-000001", {state, {}});
  });
  EXPECT_TRUE(same_bytes(CheckpointReader(folder_ / "step-000001").read("w"), tensor));
}

TEST_F(Checkpoint, LatestAndKeepLast) {
  for (const int64_t step : {1, 2, 10, 11}) save(2, Holding::kFlat, checkpoint_name(step), {.keep_last = 2});
  EXPECT_EQ(latest_checkpoint(folder_.path()), folder_ / "step-000011");
  EXPECT_EQ(list_checkpoints(folder_.path()), (std::vector<fs::path>{folder_ / "step-000010", folder_ / "step-000011"}));
  save(1, Holding::kFlat, "step-000012", {.update_latest = false});
  EXPECT_EQ(latest_checkpoint(folder_.path()), folder_ / "step-000011");
  EXPECT_EQ(read_text(folder_ / "LATEST"), "step-000011\n");
}

TEST_F(Checkpoint, SavingTheSameStepAgainReplacesIt) {
  save(3, Holding::kFlat);
  tensors_[0].second = at::randn({7, 5});
  save(2, Holding::kRows, "step-000001/");
  EXPECT_THAT(verify_checkpoint(folder_ / "step-000001"), IsEmpty());
  EXPECT_FALSE(fs::exists(folder_ / "step-000001/rank-00002.safetensors"));
  expect_loads(2, Holding::kReplicated);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 2);
}

TEST_F(Checkpoint, Names) {
  EXPECT_EQ(checkpoint_name(7), "step-000007");
  EXPECT_EQ(checkpoint_name(12345678), "step-12345678");
  EXPECT_EQ(piece_key("w", {4, 2}, {{1, 0}, {2, 2}}), "w[1:3, 0:2]");
  EXPECT_EQ(piece_key("w", {4, 2}, {{0, 0}, {4, 2}}), "w");
  EXPECT_EQ(piece_key("s", {}, {}), "s");
}

}  // namespace
}  // namespace hyper_parallel
