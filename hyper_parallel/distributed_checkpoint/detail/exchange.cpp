// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/distributed_checkpoint/detail/exchange.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::detail {
namespace {

using nlohmann::json;

at::Tensor byte_tensor(int64_t num_bytes) { return at::empty({num_bytes}, at::kByte); }

std::vector<std::vector<uint8_t>> all_gather_bytes(const ProcessGroup& group, const std::vector<uint8_t>& bytes) {
  if (group.size() == 1) return {bytes};
  at::Tensor size = at::empty({1}, at::kLong), sizes = at::empty({group.size()}, at::kLong);
  size.mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(bytes.size());
  group.all_gather(sizes, size).wait();
  at::Tensor input = byte_tensor(static_cast<int64_t>(bytes.size()));
  std::memcpy(input.mutable_data_ptr(), bytes.data(), bytes.size());
  std::vector<at::Tensor> outputs;
  for (int rank = 0; rank < group.size(); ++rank) outputs.push_back(byte_tensor(sizes.const_data_ptr<int64_t>()[rank]));
  group.all_gather(outputs, input).wait();
  std::vector<std::vector<uint8_t>> result;
  for (const at::Tensor& output : outputs) {
    const uint8_t* data = output.const_data_ptr<uint8_t>();
    result.emplace_back(data, data + output.numel());
  }
  return result;
}

json failure(const char* type, const std::exception& error) { return {{"error", error.what()}, {"type", type}}; }

json run_step(const std::function<json()>& step) {
  try {
    return {{"result", step()}};
  } catch (const CollectiveError&) {
    throw;
  } catch (const CheckpointError& error) {
    return failure("checkpoint", error);
  } catch (const InternalError& error) {
    return failure("internal", error);
  } catch (const std::exception& error) {
    return failure("runtime", error);
  }
}

[[noreturn]] void throw_failure(const std::string& type, const std::string& message) {
  if (type == "checkpoint") throw CheckpointError(message);
  if (type == "internal") throw InternalError(message);
  throw RuntimeError(message);
}

}  // namespace

std::vector<json> run_on_all(const ProcessGroup& group, const std::string& action, const std::function<json()>& step) {
  const json mine = run_step(step);
  std::vector<json> results;
  std::vector<int> failed;
  for (const std::vector<uint8_t>& bytes : all_gather_bytes(group, json::to_cbor(mine))) {
    results.push_back(json::from_cbor(bytes));
    if (results.back().contains("error")) failed.push_back(static_cast<int>(results.size()) - 1);
  }
  if (!failed.empty()) {
    const json& first = results[failed[0]];
    const std::string where = group.size() == 1 ? "" : str(" on rank ", group.ranks()[failed[0]]);
    const std::string others = failed.size() == 1 ? "" : str(" (and on ", failed.size() - 1, " more ranks)");
    throw_failure(first["type"], str(action, " failed", where, ": ", first["error"].get<std::string>(), others));
  }
  for (json& result : results) {
    json value = std::move(result["result"]);
    result = std::move(value);
  }
  return results;
}

}  // namespace hyper_parallel::detail
