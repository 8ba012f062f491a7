// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <set>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint.h"
#include "hyper_parallel/distributed_checkpoint/detail/exchange.h"
#include "hyper_parallel/distributed_checkpoint/detail/save_plan.h"

namespace hyper_parallel {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Up to ten of the lines, the first on the line of the title.
std::string listed(const std::string& title, const std::set<std::string>& lines) {
  constexpr size_t kMaxListed = 10;
  std::string text = str("\n  ", title, " (", lines.size(), "):");
  size_t count = 0;
  for (const std::string& line : lines) {
    if (++count > kMaxListed) return str(text, "\n    and ", lines.size() - kMaxListed, " more");
    text += "\n    " + line;
  }
  return text;
}

// Entries that do not fit the checkpoint, as "name: what".
json find_problems(const CheckpointMetadata& metadata, const StateDict& into, const LoadOptions& options) {
  json missing = json::array(), unfitting = json::array();
  for (const StateEntry& entry : into) {
    const CheckpointTensor* saved = metadata.find(entry.name);
    if (saved == nullptr) {
      if (!options.allow_missing) missing.push_back(entry.name);
    } else if (saved->sizes != entry.sizes) {
      unfitting.push_back(str(entry.name, ": saved with shape ", saved->sizes, ", wanted ", entry.sizes));
    } else if (saved->dtype != entry.local.scalar_type() && !options.convert_dtypes) {
      unfitting.push_back(
          str(entry.name, ": saved as ", safetensors_name(saved->dtype), ", wanted ", safetensors_name(entry.local.scalar_type())));
    }
  }
  return {{"missing", std::move(missing)}, {"unfitting", std::move(unfitting)}};
}

void merge(std::set<std::string>& into, const json& list) {
  for (const json& item : list) into.insert(item.get<std::string>());
}

// Every rank sees all ranks' problems, so all throw the same error.
void check_keys(const CheckpointReader& reader, const std::vector<json>& all, const LoadOptions& options) {
  std::set<std::string> missing, unfitting, wanted, left_over;
  for (const json& rank : all) {
    merge(missing, rank.at("missing"));
    merge(unfitting, rank.at("unfitting"));
    merge(wanted, rank.at("wanted"));
  }
  for (const CheckpointTensor& tensor : reader.metadata().tensors) {
    if (!options.allow_extra && !wanted.contains(tensor.name)) left_over.insert(tensor.name);
  }
  if (missing.empty() && unfitting.empty() && left_over.empty()) return;
  std::string message = str(reader.folder().string(), ": does not fit the state to load");
  if (!missing.empty()) message += listed("missing in the checkpoint", missing);
  if (!left_over.empty()) message += listed("only in the checkpoint", left_over);
  if (!unfitting.empty()) message += listed("of another shape or dtype", unfitting);
  throw CheckpointError(message);
}

void read_entry(CheckpointReader& reader, const StateEntry& entry) {
  const at::Tensor flat = entry.local.view(-1);
  int64_t begin = 0;
  for (const Box& box : entry.boxes) {
    const int64_t num_elements = box.numel();
    const at::Tensor part = flat.narrow(0, begin, num_elements);
    begin += num_elements;
    if (num_elements == 0) continue;
    if (part.is_cpu()) {
      reader.read_box(entry.name, box, part);
    } else {
      at::Tensor staged = at::empty({num_elements}, part.options().device(at::kCPU));
      reader.read_box(entry.name, box, staged);
      at::Tensor target = part;
      target.copy_(staged);
    }
  }
}

// "" or the complete checkpoints in the same place, for who must do without this one.
std::string others_beside(const fs::path& folder) {
  const fs::path plain = fs::absolute(folder.has_filename() ? folder : folder.parent_path());
  std::vector<std::string> names;
  for (const fs::path& other : list_checkpoints(plain.parent_path()))
    if (other != checkpoint_location(plain)) names.push_back(other.filename().string());
  return names.empty() ? "" : str("; other complete checkpoints: ", names);
}

}  // namespace

json load_checkpoint(const ProcessGroup& group, const fs::path& folder, const StateDict& into, const LoadOptions& options) {
  const std::string action = str("loading checkpoint ", folder.string());
  std::optional<CheckpointReader> reader;
  const auto on_all = [&](const std::function<json()>& step) {
    try {
      return detail::run_on_all(group, action, step);
    } catch (const CheckpointError& error) {
      throw CheckpointError(error.what() + others_beside(folder));
    }
  };
  const std::vector<json> all = on_all([&]() -> json {
    detail::describe_state(into);  // checks it
    reader.emplace(folder, options.verify_checksums);
    json result = find_problems(reader->metadata(), into, options);
    json& wanted = result["wanted"] = json::array();
    for (const StateEntry& entry : into) wanted.push_back(entry.name);
    return result;
  });
  check_keys(*reader, all, options);
  on_all([&]() -> json {
    for (const StateEntry& entry : into) {
      if (reader->contains(entry.name)) read_entry(*reader, entry);
    }
    return nullptr;
  });
  return reader->extra();
}

}  // namespace hyper_parallel
