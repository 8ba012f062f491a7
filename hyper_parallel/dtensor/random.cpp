// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/random.h"

#include <ATen/ops/empty.h>

#include <charconv>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

thread_local RandomState state_of_thread;

void draw(float* out, int64_t count, int64_t begin, const Philox& stream, const Distribution& distribution) {
  stream.fill(out, count, uint64_t(begin), distribution);
}
void draw(double* out, int64_t count, int64_t begin, const Philox& stream, const Distribution& distribution) {
  stream.fill(out, count, uint64_t(begin), distribution);
}
void draw(bool* out, int64_t count, int64_t begin, const Philox& stream, const Distribution& distribution) {
  stream.fill_mask(out, count, uint64_t(begin), distribution.a);
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
  const bool direct = local.is_cpu() && local.is_contiguous();
  if (direct && local.scalar_type() == at::kFloat) return fill_pieces<float>(local, spec, stream, distribution);
  if (direct && local.scalar_type() == at::kDouble) return fill_pieces<double>(local, spec, stream, distribution);
  if (direct && local.scalar_type() == at::kBool && distribution.kind == Distribution::Kind::kBernoulli)
    return fill_pieces<bool>(local, spec, stream, distribution);
  // In the dtype that a contiguous one is drawn in, so that roundings are the same.
  const bool is_float = local.scalar_type() == at::kFloat;
  const at::Tensor drawn = at::empty(spec->local_shape(), at::TensorOptions(is_float ? at::kFloat : at::kDouble));
  if (is_float)
    fill_pieces<float>(drawn, spec, stream, distribution);
  else
    fill_pieces<double>(drawn, spec, stream, distribution);
  local.copy_(drawn);
}

at::Tensor random_local(const Spec* spec, const Philox& stream, const Distribution& distribution) {
  at::Tensor local = at::empty(spec->local_shape(), at::TensorOptions(spec->dtype()).device(spec->device()));
  fill_random(local, spec, stream, distribution);
  return local;
}

}  // namespace hyper_parallel
