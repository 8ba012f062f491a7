// SPDX-License-Identifier: Apache-2.0
// Checkpoints that any number of ranks in any layout can save and any other can load, bit for bit.
//
//   save_checkpoint(group, "output/checkpoints/step-000100", {engine.state_dict(), {{"step", 100}}}, {.keep_last = 3});
//   nlohmann::json extra = load_checkpoint(group, latest_checkpoint("output/checkpoints"), state);   // writes into state's tensors
//
// output/checkpoints/LATEST                      one line: step-000100
// output/checkpoints/step-000100/metadata.json   shapes, boxes, checksums, extra
// output/checkpoints/step-000100/rank-00000.safetensors ...
//
// Saving: ranks exchange their lists of boxes (no tensor data), choose one writer for each distinct box with balanced bytes, and write one
// file each into step-000100.tmp-*. Rank 0 then writes metadata.json, renames the folder and replaces LATEST. Each step is synced to disk
// before the next, so a crash at any point leaves the earlier checkpoint in force; the next save removes what the crash left. Ranks on
// several hosts need a shared file system. A checkpoint of the same name is swapped out; where the file system cannot (NFS), it steps aside
// to step-000100.replaced-* for a moment. After a crash in that moment all functions here find it there by its own name.
//
// Both functions are collective. If one rank fails, all ranks throw the same error, which names the first failing rank: RuntimeError for
// failed writes, CheckpointError for checkpoints or states that do not fit; the temporary folder is removed.
//
// For tests: HYPER_PARALLEL_FAULT=checkpoint.<point>[@rank] kills the process (SIGKILL) at created, data, written, metadata, replaced (the
// old one has stepped aside), swapped (it is still to be deleted), renamed or latest, in this order of the save; checkpoint.no_swap kills
// nothing, but takes the file system for one that cannot swap.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hyper_parallel/collectives/process_group.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint_metadata.h"
#include "hyper_parallel/distributed_checkpoint/checkpoint_reader.h"
#include "hyper_parallel/dtensor/state_dict.h"

namespace hyper_parallel {

struct CheckpointState {
  // A rank may leave out entries of which it holds nothing. Equal boxes of several ranks must hold equal values: one of them is saved.
  StateDict tensors;
  nlohmann::json extra;  // counters, cursor, settings; rank 0's is saved. NaN and infinity become null: JSON has none
};

struct SaveOptions {
  int keep_last = 0;  // delete all but so many step-* folders once the new one is in force; 0 keeps all
  bool update_latest = true;
};

struct LoadOptions {
  bool allow_missing = false;    // entries that the checkpoint lacks keep their values
  bool allow_extra = false;      // tensors that no rank asks for are ignored
  bool convert_dtypes = false;   // else another dtype is an error
  bool verify_checksums = true;  // of the pieces that this rank reads
};

// `folder`: the final name; its parent is created and gets LATEST. An existing checkpoint of that name is replaced.
void save_checkpoint(const ProcessGroup& group, const std::filesystem::path& folder, const CheckpointState& state,
                     const SaveOptions& options = {});

// Fills the local tensors of `into` and returns the extra object. All keys that are missing, left over, or of another shape or dtype are
// listed in one error before anything is written.
nlohmann::json load_checkpoint(const ProcessGroup& group, const std::filesystem::path& folder, const StateDict& into,
                               const LoadOptions& options = {});

// Every problem of the folder's files (missing, size, header, checksum of each piece), with file, tensor and box; empty if it is sound.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& folder);

// The folder that LATEST names. CheckpointError if LATEST is missing, damaged, or names no complete checkpoint; it lists those that are.
std::filesystem::path latest_checkpoint(const std::filesystem::path& checkpoints);

// Where the checkpoint of that name lies: `folder`, or beside it where a crash left it (see above). `folder` if it is nowhere.
std::filesystem::path checkpoint_location(const std::filesystem::path& folder);

// Complete step-<number> folders (those with metadata.json), by ascending number. Empty if there is no such folder.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& checkpoints);

// "step-000100".
std::string checkpoint_name(int64_t step);

}  // namespace hyper_parallel
