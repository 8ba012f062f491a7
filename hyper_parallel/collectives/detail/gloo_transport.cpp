// SPDX-License-Identifier: Apache-2.0
// The only source with gloo's headers. It is compiled with hidden visibility: inline functions of those headers must not replace libtorch's
// own.
#include "hyper_parallel/collectives/detail/gloo_transport.h"

#include "hyper_parallel/base/error.h"

#if __has_include(<gloo/algorithm.h>)
#include <ATen/ops/from_blob.h>

#include <cstdlib>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

namespace hyper_parallel::detail {
namespace {

class GlooTransfer final : public Transfer {
 public:
  explicit GlooTransfer(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  void wait(std::chrono::milliseconds timeout) override {
    if (!work_->wait(timeout)) throw std::runtime_error("aborted");
  }
  void abort() override { work_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class Transport final : public GlooTransport {
 public:
  Transport(Store& store, int rank, int size, std::chrono::milliseconds timeout, bool loopback) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->threads = 1;
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    if (interface != nullptr)
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
    else if (loopback)
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    else
      options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    auto shared = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store.c10d_store());
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(shared), rank, size, std::move(options));
  }

  std::unique_ptr<Transfer> send(const void* data, int64_t num_bytes, int peer, int tag) override {
    std::vector<at::Tensor> tensors{at::from_blob(const_cast<void*>(data), {num_bytes}, at::kByte)};
    const std::lock_guard lock(mutex_);
    return std::make_unique<GlooTransfer>(gloo_->send(tensors, peer, tag));
  }

  std::unique_ptr<Transfer> recv(void* data, int64_t num_bytes, int peer, int tag) override {
    std::vector<at::Tensor> tensors{at::from_blob(data, {num_bytes}, at::kByte)};
    const std::lock_guard lock(mutex_);
    return std::make_unique<GlooTransfer>(gloo_->recv(tensors, peer, tag));
  }

 private:
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
};

}  // namespace

std::string GlooTransport::unavailable() { return ""; }

std::shared_ptr<GlooTransport> GlooTransport::connect(Store& store, int rank, int size, std::chrono::milliseconds timeout, bool loopback) {
  try {
    return std::make_shared<Transport>(store, rank, size, timeout, loopback);
  } catch (const std::exception& error) {
    throw CollectiveError(hyper_parallel::str("gloo: the ", size, " ranks could not be connected: ", error.what()));
  }
}

}  // namespace hyper_parallel::detail

#else

namespace hyper_parallel::detail {

std::string GlooTransport::unavailable() {
  return "backend \"gloo\" is not in this build: gloo's headers were missing (Debian package libgloo-dev); install them and build again, "
         "or use ranks as threads";
}

std::shared_ptr<GlooTransport> GlooTransport::connect(Store&, int, int, std::chrono::milliseconds, bool) {
  throw ConfigError(unavailable());
}

}  // namespace hyper_parallel::detail
#endif
