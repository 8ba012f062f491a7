// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/random.h"

#include <ATen/ops/empty.h>

#include <charconv>
#include <type_traits>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

thread_local RandomState state_of_thread;

template <class T>
void draw(T* out, int64_t count, int64_t begin, const Philox& stream, const Distribution& distribution) {
  if constexpr (std::is_same_v<T, bool>)
    stream.fill_mask(out, count, uint64_t(begin), distribution.a);
  else
    stream.fill(out, count, uint64_t(begin), distribution);
}

// Fills a piece by runs: elements that follow one another both in the whole tensor and in the local one.
template <class T>
class PieceFiller {
 public:
  PieceFiller(T* data, const Spec* spec, const ShardPiece& piece, const Philox& stream, const Distribution& distribution)
      : data_(data), spec_(spec), piece_(piece), stream_(stream), distribution_(distribution), run_dim_(piece.box.sizes.size()) {
    while (run_dim_ > 0) {
      const size_t dim = run_dim_ - 1;
      const int64_t size = piece.box.sizes[dim];
      if (size != 1 && piece.strides[dim] != run_) break;
      run_ *= size;
      run_dim_ = dim;
      if (size != spec->sizes()[dim]) break;
    }
  }

  // `index` is the position of the row `dim` - 1 in a tensor of the dims before `dim`, `position` the place in the local tensor.
  void fill(size_t dim, int64_t index, int64_t position) const {
    if (dim < run_dim_) {
      for (int64_t step = 0; step < piece_.box.sizes[dim]; ++step)
        fill(dim + 1, index * spec_->sizes()[dim] + piece_.box.offsets[dim] + step, position + step * piece_.strides[dim]);
      return;
    }
    for (size_t inner = dim; inner < piece_.box.sizes.size(); ++inner) index = index * spec_->sizes()[inner] + piece_.box.offsets[inner];
    draw(data_ + position, run_, index, stream_, distribution_);
  }

 private:
  T* data_;
  const Spec* spec_;
  const ShardPiece& piece_;
  const Philox& stream_;
  const Distribution& distribution_;
  size_t run_dim_;  // a run covers the dims from here on
  int64_t run_ = 1;
};

template <class T>
void fill_pieces(const at::Tensor& local, const Spec* spec, const Philox& stream, const Distribution& distribution) {
  T* data = local.mutable_data_ptr<T>();
  for (const ShardPiece& piece : spec->pieces()) PieceFiller<T>(data, spec, piece, stream, distribution).fill(0, 0, piece.offset);
}

}  // namespace

void manual_seed(uint64_t seed) { state_of_thread = {seed, 0}; }
RandomState random_state() { return state_of_thread; }
void set_random_state(RandomState state) { state_of_thread = state; }

Philox next_random_stream() {
  static const uint64_t prefix = stable_hash("dtensor.");
  char digits[20];
  const auto end = std::to_chars(digits, digits + sizeof(digits), state_of_thread.counter++).ptr;
  return {state_of_thread.seed, stable_hash({digits, size_t(end - digits)}, prefix)};
}

void fill_random(const at::Tensor& local, const Spec* spec, const Philox& stream, const Distribution& distribution) {
  HYPER_PARALLEL_CHECK(!spec->has_partial(), "random values of ", spec->to_string());
  // One dtype of drawing for each dtype, so that every layout's values are rounded alike.
  const bool mask = local.scalar_type() == at::kBool && distribution.kind == Distribution::Kind::kBernoulli;
  const at::ScalarType type = mask || local.scalar_type() == at::kFloat ? local.scalar_type() : at::kDouble;
  const bool direct = local.is_cpu() && local.is_contiguous() && local.scalar_type() == type;
  const at::Tensor drawn = direct ? local : at::empty(spec->local_shape(), at::TensorOptions(type));
  if (type == at::kBool)
    fill_pieces<bool>(drawn, spec, stream, distribution);
  else if (type == at::kFloat)
    fill_pieces<float>(drawn, spec, stream, distribution);
  else
    fill_pieces<double>(drawn, spec, stream, distribution);
  if (!direct) local.copy_(drawn);
}

at::Tensor random_local(const Spec* spec, const Philox& stream, const Distribution& distribution) {
  at::Tensor local = at::empty(spec->local_shape(), at::TensorOptions(spec->dtype()).device(spec->device()));
  fill_random(local, spec, stream, distribution);
  return local;
}

}  // namespace hyper_parallel
