// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/optim/clip.h"

#include <cmath>

namespace hyper_parallel {

double clip_coefficient(double norm, double max_norm) {
  if (max_norm <= 0 || std::isinf(max_norm)) return 1;
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient > 1 ? 1 : coefficient;
}

}  // namespace hyper_parallel
