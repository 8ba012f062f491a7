// SPDX-License-Identifier: Apache-2.0
// Under which layouts a recorded call is replayed. peer.py takes them as text from the results.
#pragma once
#include <string>
#include <vector>

#include "hyper_parallel/dtensor/placement.h"
#include "tests/parity/op_db/recorded.h"

namespace hyper_parallel::op_db {

// One of a call's tensors, lists flattened; numbers that take a tensor's place don't count.
struct CallTensor {
  int argument = 0, list_index = -1;
  at::Tensor value;
};
std::vector<CallTensor> tensors_of(const Stack& arguments);

struct Assignment {
  std::vector<std::vector<Placement>> placements;  // per tensor, one per mesh axis
  std::string text() const;                        // "[S(0)], [R]"
};

// On one axis: all replicated; each dim of each tensor sharded alone; each dim, counted from the left and from the right, sharded in every
// tensor that has it; each floating tensor as a Partial sum alone, and all of them. On two axes: each tensor's dims paired with each
// other, with themselves and with Partial, alone and in every tensor of that shape. At most `limit`, the first ones.
std::vector<Assignment> assignments_of(const std::vector<CallTensor>& tensors, int num_axes, size_t limit);

}  // namespace hyper_parallel::op_db
