// SPDX-License-Identifier: Apache-2.0
#include "hyper_parallel/shard/rules.h"

#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>

#include "hyper_parallel/base/error.h"
#include "hyper_parallel/dtensor/dtensor_impl.h"
#include "hyper_parallel/shard/detail/dispatch.h"
#include "hyper_parallel/shard/detail/embedded_ops.h"

namespace hyper_parallel {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw LayoutError(str("op rules: can't read ", path));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

void load_rules(const std::string& path) {
  static std::mutex mutex;
  static std::set<std::string> loaded;
  std::error_code error;
  const std::string file = std::filesystem::weakly_canonical(path, error).string();
  const std::lock_guard lock(mutex);
  if (loaded.count(file)) return;
  ensure_kernels();
  std::map<std::string, OpRow>& rows = detail::mutable_op_rows();
  std::map<std::string, OpRow> fresh;
  parse_op_rows(read_file(path), path, fresh);
  for (const auto& [name, row] : fresh) {
    check_op_row(row);
    if (const auto found = rows.find(name); found != rows.end())
      throw LayoutError(
          str("op ", name, " has a row already\n  in ", path, ":", row.line, "\n  and ", found->second.file, ":", found->second.line));
  }
  add_other_forms(fresh);
  for (auto& [name, row] : fresh) {
    const auto [place, added] = rows.emplace(name, std::move(row));
    if (added) detail::register_row(place->second);
  }
  loaded.insert(file);
}

}  // namespace hyper_parallel
