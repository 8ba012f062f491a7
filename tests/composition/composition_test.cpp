// SPDX-License-Identifier: Apache-2.0
// Every row of tests/composition/rows: loss, every gradient, the norm and the weights after each step equal the one-rank run's.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/train/parallelize.h"
#include "hyper_parallel/train/train_step.h"
#include "tests/composition/support/reference.h"

namespace hyper_parallel::composition {

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

namespace {

std::vector<MicroBatch> cut(const Row& row, const Batch& batch, int64_t data_rank) {
  const int64_t num_ranks = row.replicate * row.fsdp;
  const int64_t per_rank = kNumSequences / (num_ranks * row.accumulation);
  HYPER_PARALLEL_CHECK(per_rank * num_ranks * row.accumulation == kNumSequences, row.name,
                       ": ranks and accumulation do not divide the batch");
  std::vector<MicroBatch> parts;
  for (int64_t i = 0; i < row.accumulation; ++i) {
    const int64_t begin = (i * num_ranks + data_rank) * per_rank;
    parts.push_back({batch.input_ids.narrow(0, begin, per_rank), batch.labels.narrow(0, begin, per_rank)});
  }
  return parts;
}

// Relative to the largest element of the whole tensor.
void expect_near(const at::Tensor& piece, const at::Tensor& whole, const ShardedParameter& p, double tolerance, const std::string& what) {
  if (piece.numel() == 0) return;
  std::vector<at::Tensor> runs;
  p.part.for_runs(p.sizes, p.begin, p.begin + piece.numel(),
                  [&](int64_t begin, int64_t count) { runs.push_back(whole.flatten().narrow(0, begin, count)); });
  const at::Tensor want = at::cat(runs);
  const double scale = whole.abs().max().item<double>();
  const double difference = (piece - want).abs().max().item<double>();
  EXPECT_LE(difference, tolerance * scale) << what << ", elements [" << p.begin << ", " << p.begin + piece.numel() << ") of " << p.sizes;
}

void compare_step(const Row& row, World& world, const std::vector<ReferenceStep>& reference) {
  const double tolerance = row.dtype == "f64" ? 1e-9 : 1e-5;
  const auto model = make_model(row.model_type, row.config);
  ParallelModel parallel = parallelize(*model, world.group(),
                                       {.replicate_size = row.replicate,
                                        .shard_size = row.fsdp,
                                        .tensor_parallel_size = row.tp,
                                        .tensor_parallel = {.sequence_parallel = row.sequence_parallel, .loss_parallel = row.loss_parallel},
                                        .fsdp = {.reshard_after_forward = row.reshard_after_forward,
                                                 .forward_prefetch_depth = static_cast<int>(row.prefetch),
                                                 .backward_prefetch_depth = static_cast<int>(row.prefetch)}});
  parallel.engine->materialize({.dtype = dtype_of(row), .seed = kSeed});
  const auto optimizer = make_optimizer("adamw", optimizer_parameters(*parallel.engine),
                                        {.betas = {kBeta1, kBeta2}, .epsilon = kEpsilon, .weight_decay = kWeightDecay});
  TrainStep step(*model, *parallel.engine, *optimizer, parallel.data_group, kMaxNorm);
  for (int64_t i = 0; i < row.steps; ++i) {
    const std::string where = str("step ", i + 1, ", rank ", world.rank());
    const StepResult result = step.accumulate(cut(row, make_batch(row, i + 1), parallel.data_group.rank()));
    EXPECT_NEAR(result.loss, reference[i].loss, tolerance * std::abs(reference[i].loss)) << where;
    EXPECT_NEAR(result.grad_norm, reference[i].norm, tolerance * reference[i].norm) << where;
    for (const ShardedParameter& p : parallel.engine->parameters())
      expect_near(p.grad, reference[i].gradients.at(p.name), p, tolerance, str(where, ", gradient of ", p.name));
    step.update(result, kLearningRate);
    for (const ShardedParameter& p : parallel.engine->parameters())
      expect_near(p.data, reference[i].weights.at(p.name), p, tolerance, str(where, ", weight ", p.name));
  }
}

class Composition : public testing::TestWithParam<Row> {};

TEST_P(Composition, EqualsTheOneRankRun) {
  const Row& row = GetParam();
  const std::vector<ReferenceStep> reference = run_reference(row);
  if (row.labels == "none") {
    ASSERT_EQ(reference[0].loss, 0.0);
    ASSERT_EQ(reference[0].norm, 0.0);
  } else {
    for (const ReferenceStep& step : reference) ASSERT_GT(step.norm, kMaxNorm) << "nothing to clip";
  }
  run_threads(static_cast<int>(row.replicate * row.fsdp * row.tp), [&](World& world) { compare_step(row, world, reference); },
              {.timeout = std::chrono::seconds(30)});
}

INSTANTIATE_TEST_SUITE_P(Rows, Composition, testing::ValuesIn(load_rows()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hyper_parallel::composition
