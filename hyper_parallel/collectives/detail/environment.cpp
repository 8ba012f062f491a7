// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/collectives/detail/environment.h"

#include <charconv>
#include <cstring>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/base/string.h"

namespace hyper_parallel::detail {
namespace {

class Reader {
 public:
  Reader(const Getenv& get, const char* launcher) : get_(get), launcher_(launcher) {}

  bool has(const char* name) const {
    const char* value = get_(name);
    return value != nullptr && *value != '\0';
  }

  std::string text(const char* name) const {
    if (!has(name)) throw ConfigError(str("environment variable ", name, " is missing (it goes with the others of ", launcher_, ")"));
    return get_(name);
  }

  int number(const char* name, int low, int high, const std::string& why) const {
    const std::string value = text(name);
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc() || end != value.data() + value.size() || result < low || result > high) {
      throw ConfigError(str("environment variable ", name, "=", value, " (allowed: ", low, " to ", high, why, ")"));
    }
    return result;
  }

  // The four numbers, each checked against the one that bounds it.
  RankEnvironment place(const char* rank, const char* size, const char* local_rank, const char* local_size) const {
    constexpr int kMost = 1 << 20;
    RankEnvironment result;
    result.launcher = launcher_;
    result.size = number(size, 1, kMost, "");
    result.rank = number(rank, 0, result.size - 1, str(", below ", size, "=", result.size));
    result.local_size = number(local_size, 1, result.size, str(", up to ", size, "=", result.size));
    result.local_rank = number(local_rank, 0, result.local_size - 1, str(", below ", local_size, "=", result.local_size));
    return result;
  }

 private:
  const Getenv& get_;
  const char* launcher_;
};

int read_port(const Reader& reader) { return reader.number("MASTER_PORT", 1, 65535, ""); }

RankEnvironment read_torchrun(const Getenv& get) {
  const Reader reader(get, "torchrun");
  RankEnvironment result = reader.place("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  if (reader.has("OMPI_COMM_WORLD_RANK") && reader.has("OMPI_COMM_WORLD_SIZE")) {
    const std::string size = reader.text("OMPI_COMM_WORLD_SIZE"), rank = reader.text("OMPI_COMM_WORLD_RANK");
    if (size == str(result.size) && rank != str(result.rank)) {
      throw ConfigError(
          str("environment variable RANK=", result.rank, " contradicts OMPI_COMM_WORLD_RANK=", rank, " (unset RANK under mpirun)"));
    }
  }
  if (result.size > 1) {
    result.master_address = reader.text("MASTER_ADDR");
    result.master_port = read_port(reader);
  }
  result.external_store = reader.has("TORCHELASTIC_USE_AGENT_STORE") && reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  result.attempt = reader.has("TORCHELASTIC_RESTART_COUNT") ? reader.text("TORCHELASTIC_RESTART_COUNT") : "0";
  return result;
}

RankEnvironment read_mpirun(const Getenv& get) {
  const Reader reader(get, "mpirun");
  RankEnvironment result =
      reader.place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  const bool one_host = result.local_size == result.size;
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"})
    if (result.job.empty() && reader.has(name)) result.job = reader.text(name);
  if (reader.has("MASTER_PORT") || !one_host || result.job.empty()) {
    result.master_port = read_port(reader);
    result.master_address = one_host && !reader.has("MASTER_ADDR") ? "127.0.0.1" : reader.text("MASTER_ADDR");
  }
  return result;
}

RankEnvironment read_srun(const Getenv& get) {
  const Reader reader(get, "srun");
  const int node = reader.has("SLURM_NODEID") ? reader.number("SLURM_NODEID", 0, 1 << 20, "") : 0;
  const char* tasks = reader.has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  const std::string local_size = str(tasks_on_node(reader.text(tasks), node));
  const Getenv with_local_size = [&](const char* name) { return std::strcmp(name, tasks) == 0 ? local_size.c_str() : get(name); };
  const char* size = reader.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  RankEnvironment result = Reader(with_local_size, "srun").place("SLURM_PROCID", size, "SLURM_LOCALID", tasks);
  const int job = reader.number("SLURM_JOB_ID", 0, std::numeric_limits<int>::max(), "");
  result.job = str(job, "-", reader.text("SLURM_STEP_ID"));
  const bool one_host = result.local_size == result.size;
  if (one_host && !reader.has("MASTER_PORT")) return result;
  const char* nodes = reader.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_NODELIST";
  result.master_address = reader.has("MASTER_ADDR") ? reader.text("MASTER_ADDR") : one_host ? "127.0.0.1" : first_host(reader.text(nodes));
  // Above the registered services and below the kernel's own range; neighbouring jobs and steps differ.
  const int step = reader.number("SLURM_STEP_ID", 0, std::numeric_limits<int>::max(), "");
  result.master_port = reader.has("MASTER_PORT") ? read_port(reader) : 15000 + int((int64_t(job) * 7 + step) % 15000);
  return result;
}

}  // namespace

std::optional<RankEnvironment> read_environment(const Getenv& get) {
  const Reader reader(get, "");
  if (reader.has("RANK") || reader.has("WORLD_SIZE")) return read_torchrun(get);
  if (reader.has("OMPI_COMM_WORLD_RANK")) return read_mpirun(get);
  if (reader.has("SLURM_PROCID") && reader.has("SLURM_STEP_ID")) return read_srun(get);  // without a step: the batch script itself
  return std::nullopt;
}

std::string first_host(const std::string& list) {
  const size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

int tasks_on_node(const std::string& list, int node) {
  for (const std::string& item : split(list, ',')) {
    int tasks = 0, repeat = 1;
    const char* end = item.data() + item.size();
    const auto [after, error] = std::from_chars(item.data(), end, tasks);
    if (end - after > 2 && after[0] == '(' && after[1] == 'x') std::from_chars(after + 2, end, repeat);
    if (error != std::errc()) break;
    if (node < repeat) return tasks;
    node -= repeat;
  }
  throw ConfigError(str("environment variable SLURM_STEP_TASKS_PER_NODE=", list, " says nothing of this node"));
}

}  // namespace hyper_parallel::detail
