// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/fully_shard/detail/storage.h"

#include <ATen/ops/empty.h>
#include <c10/util/strides.h>

#include <array>
#include <cstring>

namespace hyper_parallel::fsdp {
namespace {

// Below this an op's fixed cost exceeds a plain loop's time; above it ATen may use several threads.
constexpr int64_t kSmallBytes = 128 << 10;

c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

bool plain(const at::Tensor& to, const at::Tensor& from) {
  return from.scalar_type() == to.scalar_type() && from.layout() == at::kStrided && from.is_cpu() && from.is_contiguous() &&
         static_cast<int64_t>(to.nbytes()) <= kSmallBytes;
}

template <class T>
void add_loop(T* __restrict to, const T* __restrict from, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) to[i] += from[i];
}

// Sixteen independent sums: fast, and a fixed order.
template <class T>
double squares(const T* values, int64_t numel) {
  constexpr int64_t kLanes = 16;
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const double value = static_cast<double>(values[i + j]);
      lanes[j] += value * value;
    }
  }
  for (int64_t j = 0; i + j < numel; ++j) {
    const double value = static_cast<double>(values[i + j]);
    lanes[j] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

at::Tensor make_flat(int64_t numel, at::ScalarType dtype) { return at::empty({numel}, at::TensorOptions(at::kCPU).dtype(dtype)); }

void allocate(const at::Tensor& flat) {
  c10::StorageImpl* storage = storage_of(flat);
  const size_t num_bytes = flat.nbytes();
  if (storage->nbytes() != 0 || num_bytes == 0) return;
  storage->set_data_ptr_noswap(storage->allocator()->allocate(num_bytes));
  storage->set_nbytes(num_bytes);
}

void release(const at::Tensor& flat) {
  c10::StorageImpl* storage = storage_of(flat);
  if (storage->nbytes() == 0) return;
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, flat.device()));
  storage->set_nbytes(0);
}

at::Tensor alias(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes) {
  return at::empty({0}, flat.options()).set_(flat.storage(), flat.storage_offset() + offset, sizes, c10::contiguous_strides(sizes));
}

void zero_range(const at::Tensor& flat, int64_t begin, int64_t end) {
  if (begin >= end) return;
  const int64_t element_bytes = flat.element_size();
  std::memset(static_cast<char*>(flat.mutable_data_ptr()) + begin * element_bytes, 0, (end - begin) * element_bytes);
}

void copy_into(const at::Tensor& to, const at::Tensor& from) {
  if (!plain(to, from)) {
    to.copy_(from);
  } else if (to.numel() > 0) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  }
}

void add_into(const at::Tensor& to, const at::Tensor& from) {
  if (plain(to, from) && to.scalar_type() == at::kFloat) {
    add_loop(to.mutable_data_ptr<float>(), from.const_data_ptr<float>(), to.numel());
  } else if (plain(to, from) && to.scalar_type() == at::kDouble) {
    add_loop(to.mutable_data_ptr<double>(), from.const_data_ptr<double>(), to.numel());
  } else {
    to.add_(from);
  }
}

double sum_of_squares(const at::Tensor& flat) {
  if (flat.numel() == 0) return 0;
  if (flat.scalar_type() == at::kFloat) return squares(flat.const_data_ptr<float>(), flat.numel());
  const at::Tensor wide = flat.to(at::kDouble);
  return squares(wide.const_data_ptr<double>(), wide.numel());
}

}  // namespace hyper_parallel::fsdp
