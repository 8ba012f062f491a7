// SPDX-License-Identifier: Apache-2.0
// Replacing a checkpoint of the same name where the file system cannot swap two folders: the old one steps aside to step-000010.replaced-*,
// the new one takes the name, the old one is deleted. A crash between leaves the old one whole under its other name: readers find it there
// (checkpoint_location), and the next save puts it back.
#pragma once
#include <filesystem>
#include <string>

namespace hyper_parallel::detail {

std::filesystem::path replaced_name(const std::filesystem::path& folder);  // unique to this process and call

// "step-000010" of "step-000010.replaced-7-0"; "" for any other name.
std::string name_before_replacing(const std::string& name);

// Gives folders that stepped aside in `parent` their names back, or deletes them where the new one is in place.
void finish_replacing(const std::filesystem::path& parent);

// metadata.json first, so that a half-deleted folder is not taken for a checkpoint. Returns why not if it could not be deleted.
std::error_code remove_checkpoint(const std::filesystem::path& folder);

}  // namespace hyper_parallel::detail
