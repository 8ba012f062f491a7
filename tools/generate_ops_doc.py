#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/ops.md from the rows of hyper_parallel/shard/ops/*.yaml. With --check: fails if the file is out of date."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROW = re.compile(r"^(\w+::[\w.]+):\s*\{(.*)\}\s*$")
KEY = re.compile(r'(\w+): (?:"([^"]*)"|\[([^\]]*)\]|([^,]+))(?:, |$)')


def table(path):
    lines = path.read_text().splitlines()
    out = [f"## {path.stem}", "", lines[1].lstrip("# "), "", "| op | rule | linear | notes |", "|---|---|---|---|"]
    for line in lines:
        row = ROW.match(line)
        if not row:
            continue
        keys = {m[1]: (m[2] or m[3] or m[4] or "").strip() for m in KEY.finditer(row[2].strip())}
        notes = [f"{k}: {keys[k]}" for k in ("each", "reduce", "whole", "empty", "writes", "plain", "keep") if k in keys]
        notes += [keys["doc"]] if "doc" in keys else []
        notes += [f"`{keys['example']}`"] if "example" in keys else []
        linear = f"`{keys['linear']}`" if "linear" in keys else ""
        out.append(f"| `{row[1]}` | `{keys['rule']}` | {linear} | {'; '.join(notes)} |".replace("  ", " "))
    return out + [""]


def main():
    lines = ["# Ops on DTensors", "", "Generated from `hyper_parallel/shard/ops/*.yaml` by `tools/generate_ops_doc.py`; notation in [adding_an_op.md](adding_an_op.md).",
             "A row holds for the in-place, out= and `_copy` forms of its op too.", ""]
    for path in sorted((ROOT / "hyper_parallel/shard/ops").glob("*.yaml")):
        lines += table(path)
    text = "\n".join(lines)
    target = ROOT / "docs/ops.md"
    if "--check" in sys.argv[1:]:
        if not target.exists() or target.read_text() != text:
            sys.exit("docs/ops.md is out of date: run tools/generate_ops_doc.py")
    else:
        target.write_text(text)


if __name__ == "__main__":
    main()
