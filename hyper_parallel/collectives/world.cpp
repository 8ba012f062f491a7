// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/world.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <numeric>
#include <thread>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/log.h"
#include "hyper_parallel/collectives/detail/environment.h"
#include "hyper_parallel/collectives/detail/gloo_backend.h"
#include "hyper_parallel/collectives/detail/rendezvous_file.h"
#include "hyper_parallel/collectives/detail/world_builder.h"

namespace hyper_parallel {
namespace {

using detail::RankEnvironment;
using detail::Store;
using std::chrono::milliseconds;

constexpr milliseconds kMeetTimeout{120'000};  // of ranks that are being started

std::shared_ptr<Store> open_store(const RankEnvironment& environment, milliseconds timeout) {
  if (environment.master_port == 0) {
    const detail::RendezvousFile file(str(environment.launcher, environment.job));
    if (environment.rank != 0) return Store::connect("127.0.0.1", file.await(timeout), timeout);
    const detail::ListeningSocket socket = detail::listen_on("127.0.0.1", 0);
    auto store = Store::serve(socket.descriptor, socket.port, timeout);
    file.publish(socket.port);
    return store;
  }
  const uint16_t port = uint16_t(environment.master_port);
  if (environment.external_store || environment.rank != 0) {
    return Store::connect(environment.master_address, port, timeout)->with_prefix(str("hyper_parallel/", environment.attempt));
  }
  const detail::ListeningSocket socket = detail::listen_on("0.0.0.0", port);
  return Store::serve(socket.descriptor, socket.port, timeout)->with_prefix(str("hyper_parallel/", environment.attempt));
}

std::shared_ptr<Backend> connect_gloo(const RankEnvironment& environment, const WorldOptions& options) {
  const milliseconds timeout = std::min(options.timeout, kMeetTimeout);
  auto process = std::make_shared<detail::GlooProcess>();
  process->store = open_store(environment, std::max(timeout, milliseconds(10'000)));
  const bool one_host = environment.local_size == environment.size;
  process->transport = detail::GlooTransport::connect(*process->store, environment.rank, environment.size, options.timeout, one_host);
  if (environment.master_port == 0 && environment.rank == 0) detail::RendezvousFile(str(environment.launcher, environment.job)).remove();
  process->timeout = options.timeout;
  process->check = detail::wants_checks(options);
  const milliseconds interval = std::clamp(options.timeout / 4, milliseconds(20), milliseconds(1000));
  process->board = std::make_unique<detail::StatusBoard>(process->store, environment.rank, interval, environment.external_store);
  std::vector<int> ranks(environment.size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<detail::GlooBackend>(std::move(process), std::move(ranks), environment.rank, "world", 0);
}

}  // namespace

std::vector<std::string> backend_names() {
  std::vector<std::string> names{"thread"};
  if (detail::GlooTransport::unavailable().empty()) names.push_back("gloo");
  return names;
}

bool World::launched() {
  return detail::read_environment([](const char* name) { return std::getenv(name); }).has_value();
}

World World::from_environment(const WorldOptions& options) {
  if (options.backend != "gloo") throw ConfigError(str("backend: \"", options.backend, "\" (allowed for ranks as processes: \"gloo\")"));
  const std::optional<RankEnvironment> environment = detail::read_environment([](const char* name) { return std::getenv(name); });
  if (!environment) return single();
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    at::set_num_threads(std::max(1, int(std::thread::hardware_concurrency()) / environment->local_size));
  }
  if (environment->size == 1) return single();
  set_log_rank(environment->rank);
  return WorldBuilder::make(environment->rank, environment->size, environment->local_rank, environment->local_size,
                            ProcessGroup(connect_gloo(*environment, options)));
}

}  // namespace hyper_parallel
