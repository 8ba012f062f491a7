#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every include in hyper_parallel/ against the table of docs/architecture.md: a folder may include only the folders below it.

Also refused: another folder's detail/, libtorch's slow umbrella headers, and any libtorch header in the folders that must do without.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# folder: what it may include directly; what those may include is allowed too.
MAY_INCLUDE = {
    "base": [],
    "collectives": ["base"],
    "dtensor": ["collectives"],
    "shard": ["dtensor"],
    "nn": ["base"],
    "tensor_parallel": ["dtensor", "nn"],
    "fully_shard": ["dtensor", "nn"],
    "optim": ["dtensor"],
    "distributed_checkpoint": ["dtensor"],
    "data": ["base"],
    "models": ["nn", "tensor_parallel", "fully_shard", "distributed_checkpoint"],
    "generate": ["models"],
    "train": ["shard", "fully_shard", "optim", "distributed_checkpoint", "data", "models", "generate"],
    "cli": ["train", "collectives"],
}
WITHOUT_TORCH = {"base", "data"}
SLOW = {"torch/torch.h", "ATen/ATen.h", "torch/extension.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def closure(folder):
    seen = {folder}
    todo = [folder]
    while todo:
        for below in MAY_INCLUDE[todo.pop()]:
            if below not in seen:
                seen.add(below)
                todo.append(below)
    return seen


def problems_of(path, folder, allowed):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(1)
        where = f"{path.relative_to(ROOT)}:{number}"
        if header in SLOW:
            yield f"{where}: {header} is slow to compile; include the per-op headers"
        if folder in WITHOUT_TORCH and header.startswith(("torch/", "ATen/", "c10/")):
            yield f"{where}: {folder}/ must not use libtorch"
        parts = header.split("/")
        if parts[0] != "hyper_parallel" or len(parts) < 3:
            continue
        if parts[1] not in allowed:
            yield f"{where}: {folder}/ may not include {parts[1]}/ (allowed: {', '.join(sorted(allowed))})"
        elif parts[1] != folder and "detail" in parts:
            yield f"{where}: {header} is private to {parts[1]}/"


def main():
    problems = []
    num_files = 0
    for folder_path in sorted((ROOT / "hyper_parallel").iterdir()):
        if not folder_path.is_dir():
            continue
        folder = folder_path.name
        if folder not in MAY_INCLUDE:
            problems.append(f"hyper_parallel/{folder}: not in the include table of tools/check_layers.py")
            continue
        allowed = closure(folder)
        for path in sorted(folder_path.rglob("*")):
            if path.suffix in (".h", ".cpp"):
                num_files += 1
                problems += problems_of(path, folder, allowed)
    for problem in problems:
        print(f"check: {problem}", file=sys.stderr)
    if not problems:
        print(f"check: includes of {num_files} files follow the table")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
