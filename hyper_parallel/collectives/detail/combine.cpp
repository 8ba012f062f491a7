// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/combine.h"

namespace hyper_parallel::detail {
namespace {

struct Choice {
  const CombineTable* table;
  const char* name;
};

Choice choose() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return {&combine_table_avx512(), "avx512"};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return {&combine_table_avx2(), "avx2"};
  return {&combine_table_sse2(), "sse2"};
}

const Choice& choice() {
  static const Choice chosen = choose();
  return chosen;
}

}  // namespace

CombineKernel combine_kernel(ElementType type, CombineOp op) { return (*choice().table)[int(type)][int(op)]; }

void copy_bytes(const CombineTask& task) { combine_kernel(ElementType::kU8, CombineOp::kSum)(task); }

const char* combine_instruction_set() { return choice().name; }

}  // namespace hyper_parallel::detail
