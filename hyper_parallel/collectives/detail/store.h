// SPDX-License-Identifier: Apache-2.0
// The key-value store through which processes find each other: libtorch's TCPStore, hidden so that its slow headers stay in few sources.
//
//   auto store = Store::connect("127.0.0.1", 29500, timeout);
//   store->set("port/0", "4711");
//   std::string port = store->get("port/0");        // waits for the key
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace c10d {
class Store;
}

namespace hyper_parallel::detail {

class Store {
 public:
  // Errors of both: CollectiveError with the address.
  static std::shared_ptr<Store> connect(const std::string& host, uint16_t port, std::chrono::milliseconds timeout);
  // Serves on a listening socket, which it takes over, until destroyed; also a client of itself.
  static std::shared_ptr<Store> serve(int listening_socket, uint16_t port, std::chrono::milliseconds timeout);

  void set(const std::string& key, const std::string& value);
  std::string get(const std::string& key);                     // waits; CollectiveError after the time-out
  std::optional<std::string> try_get(const std::string& key);  // does not wait
  std::shared_ptr<Store> with_prefix(const std::string& prefix) const;
  c10d::Store* c10d_store() const;  // owned by this object

 private:
  struct Impl;
  explicit Store(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

// A socket that listens on `address` and a port that the kernel chooses (port 0) or the given one. CollectiveError if taken.
struct ListeningSocket {
  int descriptor;
  uint16_t port;
};
ListeningSocket listen_on(const std::string& address, uint16_t port);

}  // namespace hyper_parallel::detail
