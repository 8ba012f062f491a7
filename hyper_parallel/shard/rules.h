// SPDX-License-Identifier: Apache-2.0
// Rules of a user: rows of a YAML file, written as those of hyper_parallel/shard/ops/*.yaml (op_registry.h, docs/adding_an_op.md).
//
//   # my_rules.yaml
//   my_ops::scale_rows: { rule: "m n, m -> m n", linear: "0 * 1", doc: "Scales each row.", example: "S(0), S(0) -> S(0)" }
//
//   load_rules("my_rules.yaml");
//
// The op must be known to libtorch: aten's, or defined by TORCH_LIBRARY before this call. Rows hold for all threads; load them before ranks
// run ops on DTensors, or on every rank at the same point. Loading a file again does nothing.
// Errors: LayoutError with file and line: unreadable file, bad YAML, unknown keys, rules and ops, an op that has a row already, a rule
// whose number of tensors isn't the op's. No row of a file with an error counts.
#pragma once
#include <string>

namespace hyper_parallel {

void load_rules(const std::string& path);

}  // namespace hyper_parallel
