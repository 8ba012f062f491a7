// SPDX-License-Identifier: Apache-2.0
// The precompiled header of the tests. Sources still include what they use.
#pragma once
#ifdef __clang__
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyper_parallel/autograd_pch.h"
#else
#include "hyper_parallel/pch.h"
#endif
