// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/dtensor_impl.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

std::atomic<EnsureKernels> ensure_function{nullptr};
std::atomic<bool> kernels_ready{false};

}  // namespace

DTensorImpl::DTensorImpl(const Spec& spec, const PreparedWrapper& wrapper, Unprepared)
    : TensorImpl(wrapper.keys, wrapper.dtype, spec.device()), spec_(&spec) {
  storage_access_should_throw_ = true;
  set_sizes_and_strides(spec.sizes(), spec.strides());
}

void DTensorImpl::prepare(const Spec& spec, PreparedWrapper& wrapper) {
  wrapper.keys = kDTensorBits | c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::PrivateUse2Bit) |
                 c10::getAutocastRelatedKeySetFromBackend(c10::BackendComponent::CPUBit);
  wrapper.dtype = c10::scalarTypeToTypeMeta(spec.dtype());
  const c10::intrusive_ptr<DTensorImpl> model(
      c10::intrusive_ptr<DTensorImpl>::unsafe_steal_from_new(new DTensorImpl(spec, wrapper, Unprepared{})));
  wrapper.sizes_and_strides = model->sizes_and_strides_;
  wrapper.numel = model->numel_;
  const bool flags[6] = {model->is_contiguous_,       model->is_non_overlapping_and_dense_,
                         model->is_channels_last_,    model->is_channels_last_contiguous_,
                         model->is_channels_last_3d_, model->is_channels_last_3d_contiguous_};
  std::copy(flags, flags + 6, wrapper.flags);
  wrapper.plain_contiguous = flags[0] && flags[1] && !flags[2] && !flags[3] && !flags[4] && !flags[5];
}

void DTensorImpl::adopt_flags(const PreparedWrapper& ready) {
  is_contiguous_ = ready.flags[0], is_non_overlapping_and_dense_ = ready.flags[1], is_channels_last_ = ready.flags[2];
  is_channels_last_contiguous_ = ready.flags[3], is_channels_last_3d_ = ready.flags[4], is_channels_last_3d_contiguous_ = ready.flags[5];
}

void DTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) {
  const DTensorImpl* other = dtensor_impl(source.get());
  if (other == nullptr) throw LayoutError("set_data: a plain tensor can't become the data of a DTensor; distribute it first");
  replace(other->local_, other->spec_);
  data_type_ = other->data_type_;
  key_set_ = other->key_set_;
  device_opt_ = other->device_opt_;
}

void DTensorImpl::release_resources() {
  TensorImpl::release_resources();
  local_ = at::Tensor();
}

void set_ensure_kernels(EnsureKernels ensure) { ensure_function = ensure; }

void ensure_kernels() {
  if (C10_LIKELY(kernels_ready.load(std::memory_order_acquire))) return;
  if (EnsureKernels ensure = ensure_function.load()) ensure();
  kernels_ready.store(true, std::memory_order_release);
}

}  // namespace hyper_parallel
