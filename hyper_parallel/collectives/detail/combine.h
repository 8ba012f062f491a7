// SPDX-License-Identifier: Apache-2.0
// The one kernel of every collective: n_in inputs are combined element by element into n_out equal outputs.
//
//   CombineKernel kernel = combine_kernel(ElementType::kF32, CombineOp::kSum);
//   kernel({inputs, 4, outputs, 4, count, 1, false});
//
// Inputs are taken in the given order, so sums have one order and one result. bf16 and f16 accumulate in f32 and round once. Integers wrap.
// bool: sum and max are "or", prod and min are "and". min and max pass NaN on. An output may be one of the inputs (same address).
// Three builds of the same source (SSE2, AVX2 + F16C, AVX-512); the machine that runs decides which one is used.
#pragma once
#include <cstdint>

namespace hyper_parallel::detail {

enum class ElementType : uint8_t { kF64, kF32, kBF16, kF16, kI8, kU8, kI16, kU16, kI32, kU32, kI64, kU64, kBool };
inline constexpr int kNumElementTypes = 13;
enum class CombineOp : uint8_t { kSum, kMin, kMax, kProd };
inline constexpr int kNumCombineOps = 4;

struct CombineTask {
  const void* const* inputs;
  int num_inputs;
  void* const* outputs;
  int num_outputs;
  int64_t count;     // elements
  int divisor;       // results are divided by it (averages); 1 otherwise. Floating-point only
  bool nontemporal;  // store past the caches: only where outputs are no inputs and the whole is larger than the caches
};
using CombineKernel = void (*)(const CombineTask&);
using CombineTable = CombineKernel[kNumElementTypes][kNumCombineOps];

CombineKernel combine_kernel(ElementType type, CombineOp op);
// Copies one input to all outputs; `count` is in bytes.
void copy_bytes(const CombineTask& task);
const char* combine_instruction_set();  // "avx512", "avx2" or "sse2"

// One per build of combine_impl.h.
const CombineTable& combine_table_sse2();
const CombineTable& combine_table_avx2();
const CombineTable& combine_table_avx512();

}  // namespace hyper_parallel::detail
