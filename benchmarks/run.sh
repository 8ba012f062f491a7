#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every benchmark, or the one named (its file's name without extension); each case prints a JSON line.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=(); scripts=()
for program in build/release/benchmarks/bench_*; do [ -x "$program" ] && programs+=("$program"); done
for script in benchmarks/vs_pytorch/*.py; do
  case "$(basename "$script")" in peer.py|common.py) ;; *) scripts+=("$script") ;; esac
done
name="${1:-}"
found=no
for program in "${programs[@]}"; do
  if [ -z "$name" ] || [ "$(basename "$program")" = "bench_$name" ]; then found=yes; "$program"; fi
done
for script in "${scripts[@]}"; do
  if [ -z "$name" ] || [ "$(basename "$script" .py)" = "$name" ]; then found=yes; .venv/bin/python "$script"; fi
done
if [ $found = no ]; then
  echo "bench: unknown benchmark \"$name\" (known: $(for p in "${programs[@]}"; do basename "$p" | sed s/bench_//; done | sort | tr '\n' ' ')$(for s in "${scripts[@]}"; do basename "$s" .py; done | tr '\n' ' '))" >&2
  exit 2
fi
