// SPDX-License-Identifier: Apache-2.0
// Replays one recorded call on DTensors and compares every result, and every tensor written to, with the recorded ones.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hyper_parallel/dtensor/device_mesh.h"
#include "tests/parity/op_db/layouts.h"

namespace hyper_parallel::op_db {

// passed: equal to the recorded result on every rank. raised: every rank threw a LayoutError. wrong: all else.
enum class Verdict { kPassed, kRaised, kWrong };
const char* name_of(Verdict verdict);

struct Outcome {
  Verdict verdict = Verdict::kPassed;
  std::string message;
};

// Thrown where the ranks can't go on in this world: one of them waits in a collective, or a collective failed. Carries the outcome.
struct Abandoned : std::exception {
  const char* what() const noexcept override { return "abandoned"; }
};

// Where the ranks of a world, threads of this process, tell each other how a step went.
class Agreement {
 public:
  explicit Agreement(int num_ranks) : own_(num_ranks) {}
  // Waits for all ranks; all get the same outcome. Abandoned if a rank doesn't come in time, and ever after.
  Outcome meet(int rank, const Outcome& outcome);
  // What was found out before the world was abandoned.
  Outcome of_abandoned();

 private:
  static constexpr std::chrono::seconds kPatience{20};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Outcome> own_;
  Outcome merged_;
  int64_t round_ = 0;
  size_t arrived_ = 0;
  bool abandoned_ = false;
};

// On every rank of the mesh at once.
Outcome replay(const RecordedCall& call, const std::vector<CallTensor>& tensors, const Assignment& assignment, const DeviceMesh& mesh,
               int rank, Agreement& agreement);

}  // namespace hyper_parallel::op_db
