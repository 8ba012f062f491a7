// SPDX-License-Identifier: Apache-2.0
// Bytes between processes over libtorch's gloo: one full mesh of connections for each process, shared by all of its groups.
// Messages of one pair with one tag arrive in the order in which they were sent. Everything may be called from any thread.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "hyper_parallel/collectives/detail/store.h"

namespace hyper_parallel::detail {

class Transfer {
 public:
  virtual ~Transfer() = default;
  // Throws std::exception on time-out (0: the transport's own), a closed connection or abort().
  virtual void wait(std::chrono::milliseconds timeout) = 0;
  virtual void abort() = 0;  // from any thread: wait() ends
};

class GlooTransport {
 public:
  // "" or why there is no gloo in this build.
  static std::string unavailable();
  // Collective over all ranks. `loopback`: all ranks are on this host. ConfigError if unavailable, CollectiveError if the ranks don't meet.
  static std::shared_ptr<GlooTransport> connect(Store& store, int rank, int size, std::chrono::milliseconds timeout, bool loopback);
  virtual ~GlooTransport() = default;

  // The memory must live until wait() has returned or the transport is gone.
  virtual std::unique_ptr<Transfer> send(const void* data, int64_t num_bytes, int peer, int tag) = 0;
  virtual std::unique_ptr<Transfer> recv(void* data, int64_t num_bytes, int peer, int tag) = 0;
};

}  // namespace hyper_parallel::detail
