// SPDX-License-Identifier: Apache-2.0
// Philox::normal (base/philox.h) for a range of elements, eight at a time: the same counters and formulas with polynomials for log and
// cosine, so values agree to a few units of the last bit of a double.
#pragma once
#include <cstdint>
#include <string_view>

namespace hyper_parallel::kernels {

// out[i] = mean + std * normal(begin + i). An element's value does not depend on the range that it is filled with.
void fill_normal(double* out, int64_t count, uint64_t seed, std::string_view stream, uint64_t begin, double mean, double std);

}  // namespace hyper_parallel::kernels
