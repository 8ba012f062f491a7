// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/generate/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

size_t check(CausalLm& model, const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options) {
  if (prompts.empty()) throw DataError("generate: no prompt");
  if (options.max_new_tokens < 1) throw ConfigError(hp::str("max_new_tokens: ", options.max_new_tokens, " (allowed: 1 or above)"));
  size_t longest = 0;
  for (size_t row = 0; row < prompts.size(); ++row) {
    if (prompts[row].empty()) throw DataError(hp::str("generate: prompt ", row, " has no tokens"));
    for (const int64_t token : prompts[row])
      if (token < 0 || token >= model.vocab_size())
        throw DataError(hp::str("generate: prompt ", row, " has token ", token, " (allowed: 0 to ", model.vocab_size() - 1, ")"));
    longest = std::max(longest, prompts[row].size());
  }
  const int64_t room = model.max_positions() - static_cast<int64_t>(longest);
  if (options.max_new_tokens > room)
    throw ConfigError(hp::str("max_new_tokens: ", options.max_new_tokens, " (allowed: 1 to ", room, ": the prompt has ", longest,
                              " tokens, the model ", model.max_positions(), " positions)"));
  return longest;
}

class Batch {
 public:
  Batch(CausalLm& model, size_t rows, const GenerateOptions& options)
      : model_(model),
        options_(options),
        sampler_(options.sampling),
        results_(rows),
        done_(rows, false),
        next_(at::zeros({static_cast<int64_t>(rows)}, at::kLong)) {}

  at::Tensor prefill(const std::vector<std::vector<int64_t>>& prompts, size_t longest, KvCache& cache) {
    const auto rows = static_cast<int64_t>(prompts.size());
    at::Tensor ids = at::zeros({rows, static_cast<int64_t>(longest)}, at::kLong), counts = at::empty({rows}, at::kLong);
    for (size_t row = 0; row < prompts.size(); ++row) {
      std::copy(prompts[row].begin(), prompts[row].end(), ids.mutable_data_ptr<int64_t>() + row * longest);
      counts.mutable_data_ptr<int64_t>()[row] = static_cast<int64_t>(prompts[row].size());
    }
    return model_.prefill(ids, counts, cache);
  }

  // Takes one token a running row; false once no row runs.
  bool take(const at::Tensor& logits, int64_t step) {
    const at::Tensor rows = logits.to(at::kFloat).contiguous();
    for (size_t row = 0; row < results_.size(); ++row) {
      if (done_[row]) continue;
      const int64_t vocab = options_.num_tokens > 0 ? std::min(options_.num_tokens, rows.size(1)) : rows.size(1);
      const float* row_logits = rows.const_data_ptr<float>() + static_cast<int64_t>(row) * rows.size(1);
      const int64_t token = sampler_.pick(row_logits, vocab, row, static_cast<uint64_t>(step));
      next_.mutable_data_ptr<int64_t>()[row] = token;
      done_[row] = accept(row, token);
    }
    return std::find(done_.begin(), done_.end(), false) != done_.end();
  }

  const at::Tensor& next() const { return next_; }
  std::vector<Generated> finish() && { return std::move(results_); }

 private:
  bool accept(size_t row, int64_t token) {
    Generated& result = results_[row];
    result.tokens.push_back(token);
    const bool wanted = !options_.on_token || options_.on_token(row, token);
    const auto& stops = options_.stop_tokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      result.reason = Generated::Reason::kStopToken;
    } else if (!wanted) {
      result.reason = Generated::Reason::kCallback;
    } else {
      return false;
    }
    return true;
  }

  CausalLm& model_;
  const GenerateOptions& options_;
  Sampler sampler_;
  std::vector<Generated> results_;
  std::vector<bool> done_;
  at::Tensor next_;  // finished rows keep feeding their last token; nobody reads what follows
};

}  // namespace

std::vector<Generated> generate(CausalLm& model, const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options) {
  at::NoGradGuard no_grad;
  const size_t longest = check(model, prompts, options);
  KvCache cache = model.make_cache(static_cast<int64_t>(prompts.size()), static_cast<int64_t>(longest) + options.max_new_tokens);
  Batch batch(model, prompts.size(), options);
  at::Tensor logits = batch.prefill(prompts, longest, cache);
  for (int64_t step = 0; batch.take(logits, step) && step + 1 < options.max_new_tokens; ++step) logits = model.decode(batch.next(), cache);
  return std::move(batch).finish();
}

}  // namespace hyper_parallel
