// SPDX-License-Identifier: Apache-2.0
// CommDebugMode: what the calling thread (one rank) communicates within a scope, by kind, group, cause and place.
//
//   const CommDebugMode comm;
//   model(x).sum().backward();
//   EXPECT_EQ(comm.count("all_reduce"), 2);
//   std::cout << comm.to_string();
//     12 collectives, 1.5 MiB sent
//       layers.0: 6, 768 KiB
//         attention: 3, 512 KiB
//           2 x all_gather over tp (2 ranks), 256 KiB, for aten::mm
//           1 x reduce_scatter over tp (2 ranks), 256 KiB, in backward
//
// Places are module names: fully_shard notes them, and note_module_places (tensor_parallel/) for any module. Scopes nest; an outer one
// counts what inner ones count. Groups of size 1 send nothing and count nothing. Of the thread that made it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace hyper_parallel {

namespace detail {
struct Call;
}
class Backend;

struct CommRecord {
  std::string collective;  // "all_reduce", ..., "send", "recv", "barrier"
  std::string group;
  int num_ranks = 0;
  std::string op;     // the ATen op whose inputs had to be redistributed, "" if none
  std::string place;  // module, "" if not noted
  bool backward = false;
  int64_t count = 0;
  // What this rank sends if blocks go to where they are needed, and reductions are done in parts: of b bytes over n ranks, (n-1) b for
  // all_gather (b: this rank's part), (n-1)/n b for reduce_scatter and 2 (n-1)/n b for all_reduce (b: the whole).
  int64_t bytes = 0;
};

class CommDebugMode {
 public:
  CommDebugMode();
  ~CommDebugMode();
  CommDebugMode(const CommDebugMode&) = delete;
  CommDebugMode& operator=(const CommDebugMode&) = delete;

  int64_t count() const;
  int64_t count(const std::string& collective) const;  // CollectiveError for a name that no collective has
  int64_t bytes() const;
  std::vector<CommRecord> records() const;  // by place, then in the order of the first call
  std::string to_string() const;            // the tree above

  static void record(const Backend& backend, const detail::Call& call);  // for process_group.cpp

 private:
  using Key = std::tuple<std::string, bool, const Backend*, std::string, int>;  // place, backward, group, op, collective
  std::map<Key, size_t> indices_;
  std::vector<CommRecord> records_;
  CommDebugMode* outer_;
};

// The innermost scope of this thread, or null: what process_group.cpp asks before it records.
inline constinit thread_local CommDebugMode* active_comm_debug_mode = nullptr;

// The op on whose behalf this thread communicates; `op` must outlive the scope.
inline constinit thread_local const std::string* collective_cause = nullptr;
class CauseScope {
 public:
  explicit CauseScope(const std::string& op) : outer_(collective_cause) { collective_cause = &op; }
  ~CauseScope() { collective_cause = outer_; }
  CauseScope(const CauseScope&) = delete;
  CauseScope& operator=(const CauseScope&) = delete;

 private:
  const std::string* outer_;
};

}  // namespace hyper_parallel
