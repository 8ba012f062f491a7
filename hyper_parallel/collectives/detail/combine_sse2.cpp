// SPDX-License-Identifier: Apache-2.0
#define HYPER_PARALLEL_COMBINE_TABLE combine_table_sse2
#include "hyper_parallel/collectives/detail/combine_impl.h"
