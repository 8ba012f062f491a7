// SPDX-License-Identifier: Apache-2.0
// A named place where tests end the process as a crash would: HYPER_PARALLEL_FAULT=<name>, or <name>@<rank>.
#pragma once

namespace hyper_parallel::detail {

void fault_point(const char* name, int rank);

}  // namespace hyper_parallel::detail
