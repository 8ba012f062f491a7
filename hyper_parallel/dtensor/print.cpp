// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Formatting.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/masked_select.h>
#include <c10/core/GradMode.h>

#include <sstream>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/dtensor/dtensor.h"

namespace hyper_parallel {
namespace {

constexpr int64_t kMaxShown = 64;

std::string range_of(const Box& box) {
  std::vector<std::string> dims;
  for (size_t dim = 0; dim < box.sizes.size(); ++dim) dims.push_back(str(box.offsets[dim], ":", box.offsets[dim] + box.sizes[dim]));
  return "[" + join(dims, ", ") + "]";
}

std::string boxes_of(const Spec* spec) {
  if (!spec->mesh().contains_this_rank()) return "nothing (this rank is not in the mesh)";
  std::vector<std::string> boxes;
  for (const Box& box : spec->boxes()) boxes.push_back(range_of(box));
  return boxes.empty() ? "nothing" : join(boxes, " + ");
}

std::string summary_of(const at::Tensor& local) {
  if (local.numel() == 0) return "no values";
  if (c10::isComplexType(local.scalar_type())) return str(local.numel(), " complex values");
  const at::Tensor values = local.detach().to(at::kDouble), finite = values.masked_select(at::isfinite(values));
  std::string text = str(local.numel(), " values");
  if (finite.numel() < values.numel()) text += str(", ", values.numel() - finite.numel(), " of them not finite");
  if (finite.numel() == 0) return text;
  return text + str(": min ", finite.min().item<double>(), ", max ", finite.max().item<double>(), ", mean ", finite.mean().item<double>());
}

}  // namespace

std::string DTensor::to_string() const {
  const c10::NoGradGuard no_grad;
  const at::Tensor local = impl()->local();
  std::ostringstream out;
  out << "DTensor " << spec()->to_string() << "\n  this rank holds " << boxes_of(spec()) << (is_partial() ? ", a term of it" : "") << "\n  "
      << summary_of(local);
  if (local.numel() > 0 && local.numel() <= kMaxShown) out << '\n' << local;
  return out.str();
}

std::ostream& operator<<(std::ostream& out, const DTensor& tensor) { return out << tensor.to_string(); }

}  // namespace hyper_parallel
