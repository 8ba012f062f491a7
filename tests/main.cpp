// SPDX-License-Identifier: Apache-2.0
// gtest main for every test binary: ranks are threads, so libtorch gets one intra-op thread each unless OMP_NUM_THREADS says otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  setenv("OMP_NUM_THREADS", "1", 0);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
