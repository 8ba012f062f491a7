// SPDX-License-Identifier: Apache-2.0
// A pseudo-random permutation of 0 .. size - 1 in O(1) memory: a Feistel network with Philox as its round function, walked until the value
// falls inside. permutation(i) is a function of (seed, round, i) alone.
#pragma once
#include <cstdint>

namespace hyper_parallel {

class Permutation {
 public:
  // size > 0. `round`: for example the epoch.
  Permutation(uint64_t size, uint64_t seed, uint64_t round);
  uint64_t operator()(uint64_t index) const;  // index < size

 private:
  uint64_t encrypt(uint64_t value) const;
  uint64_t size_, seed_, round_;
  int half_bits_;
};

}  // namespace hyper_parallel
