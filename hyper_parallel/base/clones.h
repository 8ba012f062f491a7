// SPDX-License-Identifier: Apache-2.0
// HYPER_PARALLEL_CLONES compiles a function for AVX-512, AVX2 and the baseline, chosen at load. Templates and lambdas are not cloned: write
// bodies as HYPER_PARALLEL_INLINE functions, called by a cloned one.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HYPER_PARALLEL_SANITIZED 1
#elif defined(__has_feature)
#define HYPER_PARALLEL_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define HYPER_PARALLEL_SANITIZED 0
#endif
#if defined(__x86_64__) && !HYPER_PARALLEL_SANITIZED && (!defined(__clang__) || __clang_major__ >= 18)
#define HYPER_PARALLEL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HYPER_PARALLEL_CLONES
#endif
#define HYPER_PARALLEL_INLINE [[gnu::always_inline]] inline
