// SPDX-License-Identifier: Apache-2.0
// DTensorImpl: the TensorImpl behind a DTensor. It has the global sizes, strides and dtype, and carries the local tensor and the Spec.
// For the dispatcher adapter in shard/ and the sources here; everybody else uses DTensor.
//
// Its key is PrivateUse2 (with that backend's autograd keys), so ops on it reach our kernels and never the CPU's, while tensors without the
// key pay nothing. It has no storage: data_ptr() and storage() throw.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "hyper_parallel/dtensor/spec.h"

namespace hyper_parallel {

inline constexpr c10::DispatchKey kDTensorKey = c10::DispatchKey::PrivateUse2;
inline constexpr c10::DispatchKeySet kDTensorBits(kDTensorKey);

class DTensorImpl final : public c10::TensorImpl {
 public:
  DTensorImpl(at::Tensor local, const Spec* spec)
      : TensorImpl(spec->wrapper().keys, spec->wrapper().dtype, spec->device()), local_(std::move(local)), spec_(spec) {
    adopt_shape();
  }
  static void prepare(const Spec& spec, PreparedWrapper& wrapper);

  const at::Tensor& local() const { return local_; }
  at::Tensor& local() { return local_; }
  const Spec* spec() const { return spec_; }
  // In-place ops that change metadata.
  void replace(at::Tensor local, const Spec* spec) {
    local_ = std::move(local), spec_ = spec;
    adopt_shape();
  }
  // The output of a view op is an inference tensor only if its base is: the constructor follows InferenceMode instead.
  void take_keys(const DTensorImpl& base) { key_set_ = base.key_set_; }

  // detach and SavedVariable come here: no dispatch, the same local handle.
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version, bool allow_change) const override {
    return copy(version, allow_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version, bool allow_change) const override {
    return copy(std::move(version), allow_change);
  }
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) override;
  void release_resources() override;
  const char* tensorimpl_type_name() const override { return "DTensorImpl"; }

 private:
  struct Unprepared {};
  DTensorImpl(const Spec& spec, const PreparedWrapper& wrapper, Unprepared);

  void adopt_shape() {
    const PreparedWrapper& ready = spec_->wrapper();
    storage_access_should_throw_ = true;
    sizes_and_strides_ = ready.sizes_and_strides;
    numel_ = ready.numel;
    if (C10_UNLIKELY(!ready.plain_contiguous || !is_contiguous_)) adopt_flags(ready);
  }
  void adopt_flags(const PreparedWrapper& ready);

  template <class Version>
  c10::intrusive_ptr<TensorImpl> copy(Version&& version, bool allow_change) const {
    auto result = c10::make_intrusive<DTensorImpl>(local_, spec_);
    result->key_set_ = key_set_;
    if (!result->is_inference()) result->set_version_counter(std::forward<Version>(version));
    result->set_allow_tensor_metadata_change(allow_change);
    return result;
  }

  at::Tensor local_;
  const Spec* spec_;
};

// has_all of a constant inlines; key_set().has(key) would be a call.
C10_ALWAYS_INLINE DTensorImpl* dtensor_impl(const c10::TensorImpl* tensor) {
  return tensor->key_set().has_all(kDTensorBits) ? static_cast<DTensorImpl*>(const_cast<c10::TensorImpl*>(tensor)) : nullptr;
}
C10_ALWAYS_INLINE DTensorImpl* dtensor_impl(const at::Tensor& tensor) { return dtensor_impl(tensor.unsafeGetTensorImpl()); }

C10_ALWAYS_INLINE at::Tensor wrap_local(at::Tensor local, const Spec* spec) {
  return at::detail::make_tensor<DTensorImpl>(std::move(local), spec);
}
C10_ALWAYS_INLINE at::Tensor wrap_view(at::Tensor local, const Spec* spec, const DTensorImpl& base) {
  at::Tensor result = wrap_local(std::move(local), spec);
  static_cast<DTensorImpl*>(result.unsafeGetTensorImpl())->take_keys(base);
  return result;
}

// shard/ sets this before main: it registers the op kernels when the first DTensor is made, so that other programs pay nothing.
using EnsureKernels = void (*)();
void set_ensure_kernels(EnsureKernels ensure);
void ensure_kernels();

}  // namespace hyper_parallel
