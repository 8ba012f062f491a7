// SPDX-License-Identifier: Apache-2.0
// The calls that record.py wrote: PyTorch's own results for aten ops, to be met by DTensors.
//
//   const Recording recording(folder);
//   for (const RecordedCall& call : recording.calls) { Stack stack = call.arguments; call.op.callBoxed(&stack); }
//
// Calls of ops that this libtorch lacks throw when the file is read.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace hyper_parallel::op_db {

using Stack = std::vector<c10::IValue>;

struct RecordedCall {
  int index = 0;  // in calls.json
  std::string name;
  c10::OperatorHandle op;
  Stack arguments;                     // as the schema has them; their tensors are shared: clone before writing
  Stack results;                       // None where the result is a written argument
  std::map<int, c10::IValue> written;  // value afterwards of the arguments that the op writes to
  bool random = false;                 // only shapes and dtypes of results mean something
};

struct Recording {
  explicit Recording(const std::filesystem::path& folder);
  std::vector<RecordedCall> calls;

 private:
  std::string data_;  // tensors.bin; tensors point into it
};

}  // namespace hyper_parallel::op_db
