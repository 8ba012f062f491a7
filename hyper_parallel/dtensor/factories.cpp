// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/dtensor/factories.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel {
namespace {

const Spec* spec_for(const Shape& sizes, const Layout& layout, const FactoryOptions& options) {
  ensure_kernels();
  if (layout.has_partial()) throw LayoutError("a factory makes no Partial tensor: " + layout.to_string());
  return intern_spec(layout, sizes, options.dtype, {}, options.device);
}

at::TensorOptions local_options(const FactoryOptions& options) { return at::TensorOptions(options.dtype).device(options.device); }

DTensor random(const Shape& sizes, const Layout& layout, const FactoryOptions& options, Distribution::Kind kind) {
  const Spec* spec = spec_for(sizes, layout, options);
  return wrap_local(random_local(spec, options.stream ? *options.stream : next_random_stream(), {kind, 0, 1}), spec);
}

}  // namespace

DTensor empty(const Shape& sizes, const Layout& layout, const FactoryOptions& options) {
  const Spec* spec = spec_for(sizes, layout, options);
  return wrap_local(at::empty(spec->local_shape(), local_options(options)), spec);
}

DTensor full(const Shape& sizes, double value, const Layout& layout, const FactoryOptions& options) {
  const Spec* spec = spec_for(sizes, layout, options);
  return wrap_local(at::full(spec->local_shape(), value, local_options(options)), spec);
}

DTensor zeros(const Shape& sizes, const Layout& layout, const FactoryOptions& options) { return full(sizes, 0, layout, options); }
DTensor ones(const Shape& sizes, const Layout& layout, const FactoryOptions& options) { return full(sizes, 1, layout, options); }
DTensor rand(const Shape& sizes, const Layout& layout, const FactoryOptions& options) {
  return random(sizes, layout, options, Distribution::Kind::kUniform);
}
DTensor randn(const Shape& sizes, const Layout& layout, const FactoryOptions& options) {
  return random(sizes, layout, options, Distribution::Kind::kNormal);
}

}  // namespace hyper_parallel
