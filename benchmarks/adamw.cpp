// SPDX-License-Identifier: Apache-2.0
// The step of AdamW beside PyTorch's fused kernel, on the same f32 data. Prints a JSON line a case; a step reads weights, gradients and two
// states and writes all but the gradients, 28 bytes an element.
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "hyper_parallel/optim/adamw.h"

namespace {

using namespace hyper_parallel;  // NOLINT: a program

constexpr double kLearningRate = 1e-3;

template <class F>
void time_seconds(double& best, F&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

struct Pieces {
  Pieces(int num_pieces, int64_t numel) {
    for (int i = 0; i < num_pieces; ++i) {
      data.push_back(at::randn({numel}));
      grads.push_back(at::randn({numel}));
    }
  }
  std::vector<at::Tensor> data, grads;
};

AdamW make_ours(const Pieces& pieces, const OptimizerOptions& options) {
  std::vector<OptimizerParameter> parameters;
  for (size_t i = 0; i < pieces.data.size(); ++i)
    parameters.push_back(
        {.name = std::to_string(i), .data = pieces.data[i], .grad = pieces.grads[i], .sizes = pieces.data[i].sizes().vec()});
  return AdamW(std::move(parameters), options);
}

void run(int num_threads, int num_pieces, int64_t numel, int num_repeats) {
  at::set_num_threads(num_threads);
  const OptimizerOptions options{.weight_decay = 0.1};
  const Pieces mine(num_pieces, numel), theirs(num_pieces, numel);
  AdamW ours = make_ours(mine, options);
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs, steps;
  for (const at::Tensor& data : theirs.data) {
    exp_avgs.push_back(at::zeros_like(data));
    exp_avg_sqs.push_back(at::zeros_like(data));
    steps.push_back(at::full({}, 1.0));
  }
  double best[2] = {1e9, 1e9};
  for (int i = 0; i < num_repeats; ++i) {  // interleaved: the machine drifts
    time_seconds(best[0], [&] { ours.step({.learning_rate = kLearningRate}); });
    time_seconds(best[1], [&] {
      at::_fused_adamw_(theirs.data, theirs.grads, exp_avgs, exp_avg_sqs, {}, steps, kLearningRate, options.betas[0], options.betas[1],
                        options.weight_decay, options.epsilon, false, false);
    });
  }
  const double bytes = 28.0 * static_cast<double>(numel) * num_pieces;
  const double ours_rate = bytes / best[0] / 1e9, peer_rate = bytes / best[1] / 1e9;
  std::printf(
      "{\"bench\": \"adamw\", \"case\": \"%d x %ld f32, %d threads\", \"ours\": %.2f, \"peer\": %.2f, \"unit\": \"GB/s\", \"ratio\": "
      "%.2f}\n",
      num_pieces, static_cast<long>(numel), num_threads, ours_rate, peer_rate, ours_rate / peer_rate);
}

}  // namespace

int main() {
  for (const int num_threads : {1, 2}) {
    run(num_threads, 1, 16 << 20, 15);
    run(num_threads, 256, 4096, 100);
  }
}
