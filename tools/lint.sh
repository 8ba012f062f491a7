#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy on the given sources, or on those changed since origin/main (all of hyper_parallel/ without such a branch).
set -euo pipefail
cd "$(dirname "$0")/.."
build="$1"; shift
command -v clang-tidy-19 >/dev/null || { echo "lint: clang-tidy-19 is missing: apt-get install clang-tidy-19" >&2; exit 1; }
if [ $# -gt 0 ]; then files=("$@")
elif git rev-parse -q --verify origin/main >/dev/null; then mapfile -t files < <(git diff --name-only --diff-filter=d origin/main -- 'hyper_parallel/*.cpp')
else mapfile -t files < <(git ls-files 'hyper_parallel/*.cpp')
fi
[ ${#files[@]} -gt 0 ] || { echo "lint: no changed sources"; exit 0; }
clang-tidy-19 -p "$build" --quiet "${files[@]}"
