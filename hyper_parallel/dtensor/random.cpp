// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/random.h"

#include <ATen/ops/empty.h>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/philox.h"

namespace hyper_parallel {
namespace {

thread_local RandomState state_of_thread;

double draw(const Philox& philox, const Distribution& distribution, uint64_t index) {
  switch (distribution.kind) {
    case Distribution::Kind::kUniform:
      return distribution.a + (distribution.b - distribution.a) * philox.uniform(index);
    case Distribution::Kind::kNormal:
      return distribution.a + distribution.b * philox.normal(index);
    case Distribution::Kind::kBernoulli:
      return philox.uniform(index) < distribution.a ? 1 : 0;
    case Distribution::Kind::kInteger:
      return distribution.a + double(philox.integer(index, uint64_t(distribution.b - distribution.a)));
  }
  return 0;
}

// Fills the block from dim `dim` on; `index` is the global flat index of its first element, `position` the local one.
struct Filler {
  const Philox& philox;
  const Distribution& distribution;
  const ShardPiece& piece;
  const Shape& global_strides;
  double* data;

  void fill(size_t dim, int64_t index, int64_t position) const {
    if (dim == piece.box.sizes.size()) {
      data[position] = draw(philox, distribution, uint64_t(index));
      return;
    }
    for (int64_t step = 0; step < piece.box.sizes[dim]; ++step)
      fill(dim + 1, index + (piece.box.offsets[dim] + step) * global_strides[dim], position + step * piece.strides[dim]);
  }
};

}  // namespace

void manual_seed(uint64_t seed) { state_of_thread = {seed, 0}; }
RandomState random_state() { return state_of_thread; }
void set_random_state(RandomState state) { state_of_thread = state; }
RandomStream next_random_stream() { return {state_of_thread.seed, str("dtensor.", state_of_thread.counter++)}; }

at::Tensor random_local(const Spec* spec, const RandomStream& stream, const Distribution& distribution) {
  HYPER_PARALLEL_CHECK(!spec->has_partial(), "random values of ", spec->to_string());
  const at::Tensor values = at::empty(spec->local_shape(), at::TensorOptions(at::kDouble));
  const Philox philox(stream.seed, stream.name);
  const Shape global_strides = contiguous_strides(spec->sizes());
  for (const ShardPiece& piece : spec->pieces())
    Filler{philox, distribution, piece, global_strides, values.mutable_data_ptr<double>()}.fill(0, 0, piece.offset);
  return values.to(at::TensorOptions(spec->dtype()).device(spec->device()));
}

}  // namespace hyper_parallel
