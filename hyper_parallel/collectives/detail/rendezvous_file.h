// SPDX-License-Identifier: Apache-2.0
// How ranks on one host find rank 0's port when their launcher gave none: a small file in the temporary folder, named after the job and the
// user. It carries rank 0's process id and start time, so a file that a dead run left behind is not believed.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace hyper_parallel::detail {

class RendezvousFile {
 public:
  explicit RendezvousFile(const std::string& job);
  void publish(uint16_t port) const;                        // rank 0
  uint16_t await(std::chrono::milliseconds timeout) const;  // the others; CollectiveError after the time-out
  void remove() const;                                      // rank 0, when all have connected
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace hyper_parallel::detail
