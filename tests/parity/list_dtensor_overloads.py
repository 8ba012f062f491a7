#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the aten overloads that torch.distributed.tensor of this environment has a sharding rule for, one per line, to
dtensor_overloads.txt beside this script. With --check: fails if that file is out of date."""
import pathlib
import sys

import torch
import torch.distributed.tensor  # noqa: F401

HEADER = "# Overloads with a rule in torch.distributed.tensor of torch {}; written by list_dtensor_overloads.py.\n"
TARGET = pathlib.Path(__file__).with_name("dtensor_overloads.txt")


def overloads():
    dispatcher = torch.distributed.tensor.DTensor._op_dispatcher
    propagator = dispatcher.sharding_propagator
    tables = (propagator.op_to_rules, propagator.op_strategy_funcs, propagator.op_single_dim_strategy_funcs)
    tables += (dispatcher._random_ops, dispatcher._custom_op_handlers)
    names = set()
    for table in tables:
        for op in table:
            if op.namespace == "aten":
                overload = "" if op._overloadname == "default" else "." + op._overloadname
                names.add("aten::" + op._schema.name.split("::")[1] + overload)
    return sorted(names)


def main():
    text = HEADER.format(torch.__version__.split("+")[0]) + "\n".join(overloads()) + "\n"
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        sys.exit(f"{TARGET.name} is out of date: run {pathlib.Path(__file__).name}")


if __name__ == "__main__":
    main()
