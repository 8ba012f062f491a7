// SPDX-License-Identifier: Apache-2.0
// Versions: of this library, of the libtorch it was built for, and of the one that is loaded.
#pragma once
#include <string>

namespace hyper_parallel {

std::string version_text();         // "0.1.0 (libtorch 2.13.0)"
std::string built_torch_version();  // "2.13.0"
// Of the library in memory, from the files beside it: version.py (wheel) or build-version (archive); "" if neither is there.
std::string loaded_torch_version();
// RuntimeError "built for libtorch 2.13, found 2.14.1 in <folder>" if the minor versions differ.
void check_torch_version();

}  // namespace hyper_parallel
