// SPDX-License-Identifier: Apache-2.0
// One flat buffer of weights and, if trainable, one of gradients, split evenly over the shard group. Knows collectives and memory, not when
// to use them (engine.h).
//
//   bucket.start_gather(); ...; bucket.wait_gather();    // the leaves can be read
//   bucket.collect(entry);                               // takes leaf.grad into the flat gradient, adding from the second time on
//   bucket.reduce(); ...; bucket.settle();               // gradient_shard is complete
//   bucket.release_weights(); bucket.drop_gradient();
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/process_group.h"
#include "hyper_parallel/fully_shard/fully_shard.h"
#include "hyper_parallel/nn/module.h"

namespace hyper_parallel::fsdp {

struct Groups {
  ProcessGroup shard;
  ProcessGroup replicate;  // invalid if there is one replica only
  bool sharded() const { return shard.size() > 1; }
  bool replicated() const { return static_cast<bool>(replicate); }
};

struct Entry {
  Parameter* slot;
  std::string name;
  int64_t offset;  // in the bucket
  int64_t numel;
  int64_t begin = 0;                 // of this rank's range, in the flattened part
  bool filled = false;               // its part of the flat gradient holds a sum
  at::Tensor leaf, gradient;         // aliases of the whole buffers
  at::Tensor piece, gradient_piece;  // aliases of this rank's shards, 1-d
};

class Bucket {
 public:
  Bucket(const Groups& groups, bool trainable, ParameterSharing sharing)
      : trainable(trainable), sharing(std::move(sharing)), groups_(groups) {}
  // Whether a parameter is of this bucket's kind.
  bool takes(const Parameter& slot, const ParameterSharing& other) const;
  void append(Parameter& slot, std::string name, const ParameterSharing& other);  // LayoutError if only one of them is `counted`
  void materialize(const MaterializeOptions& options);

  // Weights. Without sharding all of these do nothing: the leaves alias the shard.
  void start_gather();
  void wait_gather();      // and puts the leaves into the slots
  void release_weights();  // and puts the pieces into the slots; waits for a gather in flight

  // Gradients.
  void collect(Entry& entry);
  // The entries that got nothing on this rank count as zero. Returns with the collective in flight.
  void reduce();
  // Waits for the reduce-scatter, frees the flat gradient and starts what follows: the all-reduce over replicas, then that over the ranks
  // that share the parameters.
  void advance();
  void settle();  // waits for all of it
  void drop_gradient();
  // As drop_gradient and release_weights, swallowing what pending collectives throw.
  void abandon();

  const bool trainable;
  const ParameterSharing sharing;      // of all its parameters
  const std::string* place = nullptr;  // for messages (collectives/progress_note.h)
  bool owes_reduce = false;            // the same on every rank, whatever gradients it has
  std::vector<Entry> entries;
  at::Tensor shard, gradient_shard;

 private:
  enum class Stage : uint8_t { kNone, kReducing, kReplicating, kSumming };
  void open_gradient();
  void start_next_sum();
  void zero_unfilled();
  void wait_for(Work& work);
  void give_up(Work& work);
  void free(const at::Tensor& flat);
  const Groups& groups_;
  int64_t numel_ = 0;        // without padding
  bool has_result_ = false;  // gradient_shard holds (or will) a reduced sum of this step
  bool broken_ = false;      // a collective failed: other ranks may still be at work on its tensors, whose memory stays
  Stage stage_ = Stage::kNone;
  Work gather_, reduction_;
  at::Tensor flat_, gradient_;
  at::Tensor set_aside_;  // an earlier reduced sum of this step, added back when the next one is there
};

}  // namespace hyper_parallel::fsdp
