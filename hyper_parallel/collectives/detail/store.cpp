// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/store.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::detail {

struct Store::Impl {
  c10::intrusive_ptr<c10d::Store> store;
};

namespace {

c10::intrusive_ptr<c10d::Store> open_store(const std::string& host, const c10d::TCPStoreOptions& options) {
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CollectiveError(hyper_parallel::str("store at ", host, ":", options.port, ": ", text.substr(0, text.find('\n'))));
  }
}

template <class Body>
auto guarded(const std::string& key, Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CollectiveError(hyper_parallel::str("store key \"", key, "\": ", text.substr(0, text.find('\n'))));
  }
}

}  // namespace

std::shared_ptr<Store> Store::connect(const std::string& host, uint16_t port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = timeout;
  return std::shared_ptr<Store>(new Store(std::make_shared<Impl>(Impl{open_store(host, options)})));
}

std::shared_ptr<Store> Store::serve(int listening_socket, uint16_t port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.masterListenFd = size_t(listening_socket);
  return std::shared_ptr<Store>(new Store(std::make_shared<Impl>(Impl{open_store("127.0.0.1", options)})));
}

void Store::set(const std::string& key, const std::string& value) {
  guarded(key, [&] { impl_->store->set(key, value); });
}

std::string Store::get(const std::string& key) {
  return guarded(key, [&] { return impl_->store->get_to_str(key); });
}

std::optional<std::string> Store::try_get(const std::string& key) {
  return guarded(key, [&]() -> std::optional<std::string> {
    if (!impl_->store->check({key})) return std::nullopt;
    return impl_->store->get_to_str(key);
  });
}

std::shared_ptr<Store> Store::with_prefix(const std::string& prefix) const {
  return std::shared_ptr<Store>(new Store(std::make_shared<Impl>(Impl{c10::make_intrusive<c10d::PrefixStore>(prefix, impl_->store)})));
}

c10d::Store* Store::c10d_store() const { return impl_->store.get(); }

ListeningSocket listen_on(const std::string& address, uint16_t port) {
  const auto fail = [&](const char* call) {
    throw CollectiveError(hyper_parallel::str(call, " on ", address, ":", port, ": ", std::strerror(errno)));
  };
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) fail("socket");
  const int yes = 1;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  inet_pton(AF_INET, address.c_str(), &at.sin_addr);
  socklen_t length = sizeof at;
  if (bind(descriptor, reinterpret_cast<sockaddr*>(&at), length) != 0 || listen(descriptor, 1024) != 0 ||
      getsockname(descriptor, reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    const int error = errno;
    close(descriptor);
    errno = error;
    fail("listen");
  }
  return {descriptor, ntohs(at.sin_port)};
}

}  // namespace hyper_parallel::detail
