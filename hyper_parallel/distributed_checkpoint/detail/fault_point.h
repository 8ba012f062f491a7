// SPDX-License-Identifier: Apache-2.0
// Named places where tests end the process as a crash would: HYPER_PARALLEL_FAULT=<name>, or <name>@<rank>; several are separated by
// commas.
#pragma once

namespace hyper_parallel::detail {

bool fault_wanted(const char* name, int rank);
void fault_point(const char* name, int rank);

}  // namespace hyper_parallel::detail
