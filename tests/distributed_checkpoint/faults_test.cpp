// SPDX-License-Identifier: Apache-2.0
// Whatever happens to a save or to its files: the message says what and where, and the earlier checkpoint still loads.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <set>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/collectives/world.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"
#include "tests/distributed_checkpoint/support/layouts.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace hyper_parallel {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
namespace fs = std::filesystem;

const std::string kNoError = "no error";

void save_state(const fs::path& folder, const GlobalTensors& tensors) {
  run_threads(2, [&](World& world) {
    save_checkpoint(world.group(), folder, {state_of(tensors, Holding::kFlat, world.rank(), world.size()), {{"step", 1}}});
  });
}

std::string load_error(const fs::path& folder, const GlobalTensors& tensors) {
  return message_of<CheckpointError>([&] {
    run_threads(2, [&](World& world) {
      const StateDict expected = state_of(tensors, Holding::kRows, world.rank(), world.size());
      const StateDict loaded = blank_like(expected);
      load_checkpoint(world.group(), folder, loaded);
      for (size_t index = 0; index < loaded.size(); ++index) {
        EXPECT_TRUE(same_bytes(loaded[index].local, expected[index].local)) << expected[index].name;
      }
    });
  });
}

bool has_leftovers(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".tmp-") != std::string::npos || name.find(".replaced-") != std::string::npos) return true;
  }
  return false;
}

// Runs `body` in a child process; its wait status. A failed expectation in the child gives exit code 1.
int status_of_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    at::set_num_threads(1);  // libtorch renews its thread pool at the first call after a fork, which is not safe from two ranks at once
    try {
      body();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

class CheckpointFaults : public testing::Test {
 protected:
  void SetUp() override { save_state(first_, tensors_); }

  void save_killed_at(const fs::path& folder, const std::string& point) {
    const int status = status_of_child([&] {
      setenv("HYPER_PARALLEL_FAULT", point.c_str(), 1);
      save_state(folder, newer_);
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << point << ": status " << status;
  }

  // Changes one file, expects the messages of load and verify, and puts the file back.
  void damage(const std::string& file, const std::function<std::string(std::string)>& change, const std::string& message) {
    const fs::path path = first_ / file;
    const std::string good = read_text(path);
    write_text(path, change(good));
    EXPECT_THAT(load_error(first_, tensors_),
                AllOf(HasSubstr("loading checkpoint"), HasSubstr("failed on rank"), HasSubstr(path.string()), HasSubstr(message)));
    EXPECT_THAT(verify_checkpoint(first_), Contains(AllOf(HasSubstr(path.string()), HasSubstr(message))));
    write_text(path, good);
    EXPECT_EQ(load_error(first_, tensors_), kNoError);
  }

  TemporaryFolder folder_;
  const fs::path first_ = folder_ / "step-000001", second_ = folder_ / "step-000002";
  const GlobalTensors tensors_ = sample_state(), newer_ = sample_state();
};

TEST_F(CheckpointFaults, KilledBeforeTheCommit) {
  for (const char* point : {"created", "data", "data@0", "data@1", "written", "metadata"}) {
    save_killed_at(second_, std::string("checkpoint.") + point);
    EXPECT_TRUE(has_leftovers(folder_.path())) << point;
    EXPECT_FALSE(fs::exists(second_)) << point;
    EXPECT_EQ(latest_checkpoint(folder_.path()), first_) << point;
    EXPECT_EQ(load_error(first_, tensors_), kNoError) << point;
  }
  save_state(second_, newer_);
  EXPECT_FALSE(has_leftovers(folder_.path())) << "the next save removes what crashes left";
  EXPECT_EQ(latest_checkpoint(folder_.path()), second_);
  EXPECT_EQ(load_error(second_, newer_), kNoError);
}

TEST_F(CheckpointFaults, KilledAfterTheRename) {
  save_killed_at(second_, "checkpoint.renamed");
  EXPECT_EQ(latest_checkpoint(folder_.path()), first_) << "the earlier one is in force until LATEST says otherwise";
  EXPECT_EQ(load_error(second_, newer_), kNoError) << "but the new one is complete";
  save_killed_at(second_, "checkpoint.latest");
  EXPECT_EQ(latest_checkpoint(folder_.path()), second_);
  EXPECT_EQ(load_error(second_, newer_), kNoError);
}

TEST_F(CheckpointFaults, KilledWhileReplacingTheSameStep) {
  save_killed_at(first_, "checkpoint.metadata");
  EXPECT_EQ(load_error(first_, tensors_), kNoError);
  save_killed_at(first_, "checkpoint.renamed");
  EXPECT_EQ(load_error(latest_checkpoint(folder_.path()), newer_), kNoError);
}

// On a file system that cannot swap folders the old one steps aside; here the moment is longer than the process.
TEST_F(CheckpointFaults, KilledAfterTheOldOneSteppedAside) {
  save_killed_at(first_, "checkpoint.no_swap,checkpoint.replaced");
  EXPECT_FALSE(fs::exists(first_));
  const fs::path aside = latest_checkpoint(folder_.path());
  EXPECT_THAT(aside.string(), testing::StartsWith(first_.string() + ".replaced-"));
  EXPECT_EQ(checkpoint_location(first_), aside);
  EXPECT_THAT(list_checkpoints(folder_.path()), testing::ElementsAre(aside));
  EXPECT_THAT(verify_checkpoint(first_), IsEmpty());
  EXPECT_EQ(inspect_checkpoint(first_).tensors.size(), tensors_.size());
  EXPECT_EQ(load_error(first_, tensors_), kNoError) << "by the name that it had";
  EXPECT_EQ(load_error(first_.string() + "/", tensors_), kNoError);
  EXPECT_EQ(load_error(aside, tensors_), kNoError);
  save_state(second_, newer_);
  EXPECT_FALSE(has_leftovers(folder_.path()));
  EXPECT_THAT(list_checkpoints(folder_.path()), testing::ElementsAre(first_, second_)) << "the next save puts it back";
  EXPECT_EQ(load_error(first_, tensors_), kNoError);
}

TEST_F(CheckpointFaults, KilledBeforeTheOldOneIsDeleted) {
  for (const char* faults : {"checkpoint.no_swap,checkpoint.swapped", "checkpoint.swapped"}) {
    save_killed_at(first_, faults);
    EXPECT_TRUE(has_leftovers(folder_.path())) << faults;
    EXPECT_EQ(latest_checkpoint(folder_.path()), first_) << faults;
    EXPECT_THAT(list_checkpoints(folder_.path()), testing::ElementsAre(first_)) << faults;
    EXPECT_EQ(load_error(first_, newer_), kNoError) << faults;
    save_state(first_, tensors_);
    EXPECT_FALSE(has_leftovers(folder_.path())) << faults;
    EXPECT_EQ(load_error(first_, tensors_), kNoError) << faults;
  }
}

TEST_F(CheckpointFaults, ReplacesWithoutSwapping) {
  save_killed_at(first_, "checkpoint.no_swap,checkpoint.replaced");
  const int status = status_of_child([&] {
    setenv("HYPER_PARALLEL_FAULT", "checkpoint.no_swap", 1);
    for (const GlobalTensors* tensors : {&newer_, &tensors_, &newer_}) save_state(first_, *tensors);
  });
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(has_leftovers(folder_.path()));
  EXPECT_EQ(load_error(latest_checkpoint(folder_.path()), newer_), kNoError);
}

TEST_F(CheckpointFaults, FoldersOfOthersStay) {
  fs::create_directory(folder_ / "notes.replaced-by-hand");
  save_state(second_, newer_);
  EXPECT_TRUE(fs::exists(folder_ / "notes.replaced-by-hand"));
}

// LATEST cannot be renamed over a folder; the checkpoint is complete, and no temporary file stays.
TEST_F(CheckpointFaults, LatestCannotBeReplaced) {
  fs::remove(folder_ / "LATEST");
  fs::create_directories(folder_ / "LATEST/inside");
  EXPECT_THAT(message_of<RuntimeError>([&] { save_state(second_, newer_); }), AllOf(HasSubstr("cannot rename "), HasSubstr("LATEST")));
  EXPECT_FALSE(has_leftovers(folder_.path()));
  EXPECT_EQ(load_error(second_, newer_), kNoError);
}

// The first file of three fits, the second does not.
TEST_F(CheckpointFaults, ExportThatFailsKeepsTheEarlierOne) {
  const fs::path model = folder_ / "model";
  const auto tensors = [](int64_t size) { return NamedTensors{{"a", at::zeros({10})}, {"b", at::zeros({size})}, {"c", at::zeros({10})}}; };
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(model)) found.insert(entry.path().filename().string());
    return found;
  };
  write_safetensors_folder(model, tensors(10), 40);
  const std::set<std::string> before = names();
  EXPECT_THAT(before, SizeIs(4));
  const int status = status_of_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_THAT(message_of<RuntimeError>([&] { write_safetensors_folder(model, tensors(100'000), 40); }),
                AllOf(HasSubstr("cannot write "), HasSubstr("model-00002-of-00003.safetensors"), HasSubstr("File too large")));
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(names(), before);
  EXPECT_EQ(SafetensorsFolder(model).info("b").sizes, std::vector<int64_t>{10});
}

TEST_F(CheckpointFaults, LeftoversGoAtTheNextSave) {
  fs::create_directories(folder_ / "step-000009.tmp-1-0/inner");
  write_text(folder_ / "LATEST.tmp-1-1", "step-000009");
  save_state(second_, newer_);
  EXPECT_FALSE(has_leftovers(folder_.path()));
}

// Only rank 1's file exceeds the limit; both ranks must throw its error.
TEST_F(CheckpointFaults, OneRankCannotWrite) {
  const int status = status_of_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    run_threads(2, [&](World& world) {
      const at::Tensor tensor = at::zeros({world.rank() == 0 ? 10 : 100'000});
      const StateDict state{whole_entry("w" + std::to_string(world.rank()), tensor)};
      const std::string message = message_of<RuntimeError>([&] { save_checkpoint(world.group(), second_, {state, {}}); });
      EXPECT_THAT(message, AllOf(HasSubstr("saving checkpoint " + second_.string()), HasSubstr("failed on rank 1: cannot write"),
                                 HasSubstr("rank-00001.safetensors: File too large")))
          << "rank " << world.rank();
    });
    EXPECT_FALSE(has_leftovers(folder_.path()));
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(latest_checkpoint(folder_.path()), first_);
  EXPECT_EQ(load_error(first_, tensors_), kNoError);
}

// A file system of 1 MiB in a mount name space of its own, which ends with the child.
TEST_F(CheckpointFaults, DiskFull) {
  constexpr int kNoMount = 77;
  const int status = status_of_child([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) _exit(kNoMount);
    const fs::path disk = folder_ / "disk";
    fs::create_directory(disk);
    if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) _exit(kNoMount);
    save_state(disk / "step-000001", tensors_);
    const GlobalTensors large{{"w", at::randn({1000, 1000})}};
    const std::string message = message_of<RuntimeError>([&] { save_state(disk / "step-000002", large); });
    EXPECT_THAT(message, AllOf(HasSubstr("failed on rank"), HasSubstr("cannot write " + (disk / "step-000002").string() + ".tmp-"),
                               HasSubstr(".safetensors: No space left on device")));
    EXPECT_FALSE(has_leftovers(disk));
    EXPECT_EQ(latest_checkpoint(disk), disk / "step-000001");
    EXPECT_EQ(load_error(disk / "step-000001", tensors_), kNoError);
    save_state(disk / "step-000002", newer_);
    EXPECT_EQ(load_error(latest_checkpoint(disk), newer_), kNoError);
  });
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoMount) GTEST_SKIP() << "this user may not mount; OneRankCannotWrite covers the path";
  EXPECT_EQ(status, 0);
}

TEST_F(CheckpointFaults, FolderCannotBeMade) {
  write_text(folder_ / "file", "x");
  EXPECT_THAT(message_of<RuntimeError>([&] { save_state(folder_ / "file/step-000001", tensors_); }),
              AllOf(HasSubstr("failed on rank 0: cannot create folder"), HasSubstr("Not a directory")));
  EXPECT_THAT(message_of<CheckpointError>([&] {
                run_threads(1, [&](World& world) { save_checkpoint(world.group(), second_, {{}, {{"text", "\xff"}}}); });
              }),
              HasSubstr("invalid UTF-8"));
  EXPECT_FALSE(has_leftovers(folder_.path()));
}

TEST_F(CheckpointFaults, DamagedFiles) {
  const std::string data = "rank-00001.safetensors";
  const auto flip = [](size_t from_end) {
    return [=](std::string text) {
      text[text.size() - from_end] ^= 1;
      return text;
    };
  };
  const auto cut = [](double part) {
    return [=](const std::string& text) { return text.substr(0, static_cast<size_t>(part * static_cast<double>(text.size()))); };
  };
  damage(data, cut(0.5), "bytes, expected");
  damage(data, cut(0), ": 0 bytes, expected");
  damage(
      data, [](const std::string& text) { return text + "x"; }, "bytes, expected");
  damage(data, flip(20), "damaged: ");
  damage(
      data, [](std::string text) { return text.replace(text.find("pt"), 2, "qt"); }, "damaged header: wrong checksum");
  damage(
      data, [](std::string text) { return text.replace(0, 8, std::string(8, '\x7f')); }, "damaged header");
  damage(kCheckpointMetadataFile, cut(0.9), "damaged or truncated");
  damage(kCheckpointMetadataFile, cut(0), "damaged or truncated");
  damage(kCheckpointMetadataFile, flip(100), "damaged: checksum");
}

TEST_F(CheckpointFaults, EveryFlippedBitIsNoticed) {
  const TemporaryFolder small;
  const fs::path folder = small / "step-000001";
  save_state(folder, {{"a", at::randn({2, 3})}, {"b", at::randn({3}).to(at::kBFloat16)}});
  EXPECT_THAT(verify_checkpoint(folder), IsEmpty());
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string good = read_text(entry.path());
    for (size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      write_text(entry.path(), bad);
      const std::vector<std::string> problems = verify_checkpoint(folder);
      ASSERT_THAT(problems, Not(IsEmpty())) << entry.path() << " byte " << at;
      EXPECT_THAT(problems, Each(HasSubstr(entry.path().string())));
    }
    write_text(entry.path(), good);
  }
  EXPECT_THAT(verify_checkpoint(folder), IsEmpty());
}

TEST_F(CheckpointFaults, MissingFiles) {
  const fs::path file = first_ / "rank-00000.safetensors";
  fs::remove(file);
  EXPECT_THAT(load_error(first_, tensors_), AllOf(HasSubstr(file.string()), HasSubstr("No such file")));
  EXPECT_THAT(verify_checkpoint(first_), AllOf(SizeIs(1), Contains(HasSubstr("rank-00000.safetensors: No such file"))));
  fs::remove(first_ / kCheckpointMetadataFile);
  EXPECT_THAT(load_error(first_, tensors_), HasSubstr("step-000001: not a complete checkpoint: has no metadata.json"));
  EXPECT_THAT(load_error(folder_ / "none", tensors_), HasSubstr("none: no such folder"));
}

TEST_F(CheckpointFaults, FilesOfAnotherCheckpoint) {
  save_state(second_, newer_);
  fs::copy_file(second_ / "rank-00001.safetensors", first_ / "rank-00001.safetensors", fs::copy_options::overwrite_existing);
  EXPECT_THAT(load_error(first_, tensors_), AllOf(HasSubstr("rank-00001.safetensors"), HasSubstr("damaged")));
  EXPECT_EQ(load_error(second_, newer_), kNoError);
}

TEST_F(CheckpointFaults, LatestIsMissingOrWrong) {
  const auto error = [&] { return message_of<CheckpointError>([&] { latest_checkpoint(folder_.path()); }); };
  const fs::path latest = folder_ / "LATEST";
  EXPECT_EQ(error(), kNoError);
  fs::remove(latest);
  EXPECT_THAT(error(), AllOf(HasSubstr("LATEST: no such file"), HasSubstr("complete checkpoints: [step-000001]")));
  write_text(latest, "step-000007\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("names step-000007, which is missing"), HasSubstr("complete checkpoints: [step-000001]")));
  for (const std::string& bad : std::vector<std::string>{"", "\n", "../x\n", "..", std::string("a\0b", 3), "a\nb\n"}) {
    write_text(latest, bad);
    EXPECT_NE(error(), kNoError) << bad;
  }
  write_text(latest, "step-000001\n");
  fs::remove(first_ / kCheckpointMetadataFile);
  EXPECT_THAT(error(), AllOf(HasSubstr("which is not complete"), HasSubstr("it has no complete checkpoint")));
  EXPECT_THAT(message_of<CheckpointError>([&] { latest_checkpoint(folder_ / "none"); }), HasSubstr("none: no such folder"));
}

}  // namespace
}  // namespace hyper_parallel
