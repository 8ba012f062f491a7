// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/rendezvous_file.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::detail {
namespace {

// Clock ticks since boot at which a process started; 0 if there is none.
uint64_t start_time(int64_t process) {
  std::ifstream in(str("/proc/", process, "/stat"));
  std::string line;
  std::getline(in, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 19; ++i) fields >> skipped;
  uint64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

}  // namespace

RendezvousFile::RendezvousFile(const std::string& job)
    : path_((std::filesystem::temp_directory_path() / str("hyper_parallel-", getuid(), "-", std::hash<std::string>()(job), ".port"))
                .string()) {}

void RendezvousFile::publish(uint16_t port) const {
  const std::string part = str(path_, ".", getpid());
  std::ofstream(part) << port << ' ' << getpid() << ' ' << start_time(getpid()) << '\n';
  std::error_code error;
  std::filesystem::rename(part, path_, error);
  if (error) throw CollectiveError(str(path_, ": ", error.message()));
}

uint16_t RendezvousFile::await(std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  do {
    std::ifstream in(path_);
    int64_t port = 0, process = 0;
    uint64_t ticks = 0;
    if (in >> port >> process >> ticks && ticks != 0 && start_time(process) == ticks) return uint16_t(port);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  } while (std::chrono::steady_clock::now() < deadline);
  throw CollectiveError(str("rank 0 has not published its port in ", path_, " (set MASTER_ADDR and MASTER_PORT to do without the file)"));
}

void RendezvousFile::remove() const {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace hyper_parallel::detail
