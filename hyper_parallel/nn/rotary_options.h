// SPDX-License-Identifier: Apache-2.0
// What rotary positions depend on; no torch, so that model configs can carry it.
#pragma once
#include <cstdint>

namespace hyper_parallel {

struct RotaryOptions {
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3 };
  int64_t dim = 0;  // of one head, even
  double theta = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;                 // kLinear, kLlama3: how much longer the context became
  double low_frequency_factor = 1;   // kLlama3: wavelengths above original / low are slowed by `factor`,
  double high_frequency_factor = 4;  //          those below original / high are kept, between is blended
  int64_t original_positions = 8192;
};

}  // namespace hyper_parallel
