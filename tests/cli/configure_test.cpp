// SPDX-License-Identifier: Apache-2.0
// Which libtorch a configure takes, and what it says of one that it can't take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/support/run.h"

namespace hyper_parallel {
namespace {

using namespace test;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

// A folder that looks like a libtorch; no version header for "".
void make_libtorch(const fs::path& root, const std::string& minor) {
  write_text(root / "include/ATen/core/Tensor.h", "");
  write_text(root / "lib/libtorch_cpu.so", "");
  write_text(root / "share/cmake/Torch/TorchConfig.cmake", "");
  if (minor.empty()) return;
  write_text(root / "include/torch/headeronly/version.h",
             "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR " + minor + "\n#define TORCH_VERSION_PATCH 1\n");
}

// The lookup alone, as a CMake script.
Outcome look_up(const Strings& options, const Strings& variables = {}) {
  Strings argv{"cmake"};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), {"-P", (source_root() / "cmake/HyperParallelTorch.cmake").string()});
  return run_program(argv, seconds(30), environment(variables));
}

TEST(Configure, AnotherVersionIsRefused) {
  const TemporaryFolder folder;
  make_libtorch(folder / "newer", "99");
  make_libtorch(folder / "older", "");
  const std::string newer = (folder / "newer").string(), older = (folder / "older").string();
  for (const Outcome& outcome : {look_up({"-DCMAKE_PREFIX_PATH=" + newer}), look_up({"-DCMAKE_PREFIX_PATH=" + newer + "/share/cmake"}),
                                 look_up({"-DHYPER_PARALLEL_TORCH_DIR=" + newer}), look_up({}, {"CMAKE_PREFIX_PATH=/nowhere:" + newer})}) {
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("built for 2.13, found 2.99.1"), HasSubstr("newer")));
  }
  EXPECT_THAT(look_up({"-DCMAKE_PREFIX_PATH=" + older}).output, HasSubstr("built for 2.13, found an older one"));
}

TEST(Configure, AnAskedForFolderWithoutLibtorchIsRefused) {
  const TemporaryFolder folder;
  const Outcome outcome = look_up({"-DHYPER_PARALLEL_TORCH_DIR=" + folder.path().string()});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("HYPER_PARALLEL_TORCH_DIR: no libtorch in"));
}

// A CUDA wheel on a machine without CUDA's toolkit: Caffe2's own config would stop here.
TEST(Configure, ACudaWheelIsTaken) {
  const TemporaryFolder folder;
  fs::path torch;
  for (const auto& entry : fs::directory_iterator(source_root() / ".venv/lib"))
    if (fs::exists(entry.path() / "site-packages/torch")) torch = fs::canonical(entry.path() / "site-packages/torch");
  ASSERT_FALSE(torch.empty());
  const fs::path wheel = folder / "torch";
  fs::create_directories(wheel / "lib");
  fs::create_directory_symlink(torch / "include", wheel / "include");
  for (const auto& entry : fs::directory_iterator(torch / "lib")) fs::create_symlink(entry.path(), wheel / "lib" / entry.path().filename());
  for (const char* name : {"libtorch_cuda.so", "libc10_cuda.so"}) write_text(wheel / "lib" / name, "");
  write_text(wheel / "share/cmake/Torch/TorchConfig.cmake", "message(FATAL_ERROR \"no CUDA toolkit\")\n");
  const Outcome outcome = run_program({"cmake", "-G", "Ninja", "-S", source_root(), "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release",
                                       "-DCMAKE_PREFIX_PATH=" + wheel.string()},
                                      seconds(120), environment());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("libtorch 2.13.0 in " + fs::canonical(wheel).string()));
}

}  // namespace
}  // namespace hyper_parallel
