#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails if a tracked source is not formatted as .clang-format says or lacks the licence line.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t sources < <(git ls-files '*.h' '*.cpp')
[ ${#sources[@]} -gt 0 ] || { echo "check: git lists no sources here" >&2; exit 1; }
failed=0
if ! clang-format-14 --dry-run -Werror --ferror-limit=1 "${sources[@]}"; then
  echo "check: run 'make format'" >&2
  failed=1
fi
for file in $(git ls-files '*.h' '*.cpp' '*.py' '*.sh' '*.cmake' '*CMakeLists.txt' Makefile); do
  head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || { echo "check: $file lacks the SPDX licence line" >&2; failed=1; }
done
[ $failed = 0 ] && echo "check: format and licence lines of ${#sources[@]} sources are fine"
exit $failed
