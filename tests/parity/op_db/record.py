#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the samples of PyTorch's own operator database and records every aten call below autograd, for replay on sharded tensors.

record.py FOLDER [--samples N] [--seconds S] [--entries GLOB]

Writes FOLDER/tensors.bin (raw bytes of contiguous tensors, equal ones once) and FOLDER/calls.json:
  entries  [{name, calls: [indices], errors: [...]}]   what each entry of the database consists of
  skipped  {reason: number of calls}
  calls    [{op, arguments, results, written, random}]
A call runs on fresh contiguous copies of its tensors, so that its result depends on values and shapes only. A value is null, a bool, a
number, a string ("nan", "inf", "-inf" for such floats), a list, {"tensor": [dtype, sizes, offset_bytes]}, {"complex": [re, im]},
{"dtype": code}, {"memory_format": code}, {"layout": code} or {"device": "cpu"}. `arguments` follow the op's schema, defaults included;
`written` are the indices of arguments that the op writes to, with their values afterwards.
"""
import argparse
import ctypes
import fnmatch
import hashlib
import json
import math
import pathlib
import random
import signal
import sys
import time
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

MAX_BYTES = 64 * 1024  # of one tensor
MAX_ENTRY_CALLS = 400
SLOW = {"polygamma"}  # one sample: the others take 10 s each
UNINITIALIZED = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided", "aten::resize_"}
MEMORY_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3}
DTYPES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.float64: 7,
    torch.complex32: 8, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15, torch.uint16: 27, torch.uint32: 28,
    torch.uint64: 29,
}  # fmt: skip


class Skip(Exception):
    """This call is not recorded; the text says why."""


class TensorFile:
    def __init__(self, path):
        self.file = open(path, "wb")
        self.offsets = {}
        self.end = 0

    def add(self, tensor):
        data = ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""
        key = hashlib.blake2b(data, digest_size=16).digest()
        if key not in self.offsets:
            padding = -self.end % 16
            self.file.write(b"\0" * padding + data)
            self.offsets[key] = self.end + padding
            self.end += padding + len(data)
        return self.offsets[key]


def fresh(tensor):
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
        raise Skip("a tensor that is not strided or not on the CPU")
    if tensor.dtype not in DTYPES:
        raise Skip(f"dtype {tensor.dtype}")
    if tensor.nbytes > MAX_BYTES:
        raise Skip("a large tensor")
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def copied(value, made):
    """The value with fresh tensors; one object stays one object."""
    if isinstance(value, torch.Tensor):
        if id(value) not in made:
            made[id(value)] = fresh(value)
        return made[id(value)]
    if isinstance(value, (list, tuple)):
        return [copied(item, made) for item in value]
    return value


class Recorder(TorchDispatchMode):
    def __init__(self, folder):
        super().__init__()
        self.tensors = TensorFile(folder / "tensors.bin")
        self.calls, self.index_of, self.skipped = [], {}, {}
        self.current = None

    def encode(self, value):
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, torch.Tensor):
            return {"tensor": [DTYPES[value.dtype], list(value.shape), self.tensors.add(value)]}
        if isinstance(value, (list, tuple)):
            return [self.encode(item) for item in value]
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, complex):
            return {"complex": [self.encode(value.real), self.encode(value.imag)]}
        if isinstance(value, torch.dtype):
            return {"dtype": DTYPES[value]}
        if isinstance(value, torch.memory_format):
            return {"memory_format": MEMORY_FORMATS[value]}
        if isinstance(value, torch.layout):
            if value != torch.strided:
                raise Skip("a tensor that is not strided or not on the CPU")
            return {"layout": 0}
        if isinstance(value, torch.device):
            if value.type != "cpu":
                raise Skip("a tensor that is not strided or not on the CPU")
            return {"device": "cpu"}
        if isinstance(value, torch.Generator):
            raise Skip("a generator argument")
        raise Skip(f"an argument of type {type(value).__name__}")

    def record(self, func, args, kwargs):
        schema, made = func._schema, {}
        if not schema.name.startswith("aten::"):
            raise Skip("an op that Python defines")
        args = [copied(value, made) for value in args]
        kwargs = {key: copied(value, made) for key, value in kwargs.items()}
        arguments, written = [], []
        for position, argument in enumerate(schema.arguments):
            if argument.name in kwargs:
                arguments.append(kwargs[argument.name])
            elif position < len(args) and not argument.kwarg_only:
                arguments.append(args[position])
            else:
                arguments.append(argument.default_value)
            if argument.alias_info is not None and argument.alias_info.is_write:
                written.append(position)
        op = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        call = {"op": op, "arguments": [self.encode(value) for value in arguments]}
        key = json.dumps(call)
        if key in self.index_of:
            return self.index_of[key]
        if not made:
            raise Skip("no tensor argument")
        try:
            results = func(*args, **kwargs)
        except Exception:
            raise Skip("the op fails on contiguous copies of its arguments")
        call["random"] = torch.Tag.nondeterministic_seeded in func.tags or schema.name in UNINITIALIZED
        results = [] if not schema.returns else [results] if len(schema.returns) == 1 else list(results)
        call["results"] = []
        for value, returned in zip(results, schema.returns):
            is_written = returned.alias_info is not None and returned.alias_info.is_write
            call["results"].append(None if is_written else self.encode(copied(value, {})))
        call["written"] = {str(position): self.encode(copied(arguments[position], {})) for position in written}
        self.index_of[key] = len(self.calls)
        self.calls.append(call)
        return self.index_of[key]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.current is not None and len(self.current["calls"]) < MAX_ENTRY_CALLS:
            state = torch.random.get_rng_state()
            try:
                index = self.record(func, args, kwargs)
                if index not in self.current["calls"]:
                    self.current["calls"].append(index)
            except Skip as skip:
                self.skipped[str(skip)] = self.skipped.get(str(skip), 0) + 1
            finally:
                torch.random.set_rng_state(state)
        return func(*args, **kwargs)


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_in(item)] if isinstance(value, (list, tuple)) else []


def cotangent(tensor):
    values = torch.arange(tensor.numel(), dtype=torch.float64).remainder(7) * 0.25 - 0.625
    return values.reshape(tensor.shape).to(tensor.dtype)


def changed(value, change):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(*[changed(v, change) for v in value]) if hasattr(value, "_fields") else type(value)(changed(v, change) for v in value)
    return value


def forms_of(op, sample):
    """Name and call of each form of one sample: functional with its gradient, in place, out=."""
    plain = changed((sample.input, *sample.args), lambda tensor: tensor.detach().clone())
    yield "", lambda: op(sample.input, *sample.args, **sample.kwargs)
    if op.inplace_variant is not None and not sample.broadcasts_input:
        yield "in place", lambda: op.inplace_variant(*plain, **sample.kwargs)
    if op.supports_out:
        with torch.no_grad():
            made = op(*plain, **sample.kwargs)
        if isinstance(made, torch.Tensor) or (isinstance(made, tuple) and all(isinstance(one, torch.Tensor) for one in made)):
            out = changed(made, lambda tensor: torch.empty_like(tensor))
            yield "out", lambda: op(*plain, **sample.kwargs, out=out)


def run_sample(recorder, entry, op, sample, with_gradient):
    for form, call in forms_of(op, sample):
        try:
            if form:
                with recorder, torch.no_grad():
                    call()
                continue
            leaves = [tensor for tensor in tensors_in([sample.input, *sample.args, sample.kwargs]) if tensor.requires_grad]
            with recorder:
                result = call()
            outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad] if with_gradient else []
            if outputs and leaves:
                gradients = [cotangent(output.detach()) for output in outputs]
                with recorder:
                    torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)
        except Exception as error:
            entry["errors"].append(f"{form}: {type(error).__name__}: {str(error)[:200]}")


def dtype_of(op):
    allowed = op.supported_dtypes("cpu")
    for dtype in (torch.float64, torch.float32, torch.int64, torch.complex128, torch.bool):
        if dtype in allowed:
            return dtype
    return next(iter(allowed), None)


class OutOfTime(Exception):
    pass


def on_alarm(*_):
    raise OutOfTime


def run_entry(recorder, op, samples, seconds):
    entry = {"name": op.name + ("." + op.variant_test_name if op.variant_test_name else ""), "calls": [], "errors": []}
    torch.manual_seed(1)
    random.seed(1)
    dtype = dtype_of(op)
    if dtype is None:
        entry["errors"].append("no dtype on the CPU")
        return entry
    gradient = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu") and (dtype.is_floating_point or dtype.is_complex)
    recorder.current = entry
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        for index, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradient)):
            if index >= (1 if op.name in SLOW else samples):
                break
            run_sample(recorder, entry, op, sample, gradient)
    except OutOfTime:
        pass
    except Exception as error:
        entry["errors"].append(f"samples: {type(error).__name__}: {str(error)[:200]}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        recorder.current = None
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--samples", type=int, default=4, help="samples an entry")
    parser.add_argument("--seconds", type=float, default=5, help="time limit of an entry")
    parser.add_argument("--entries", default="*", help="only entries whose name matches")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, on_alarm)
    options.folder.mkdir(parents=True, exist_ok=True)
    recorder, entries, start = Recorder(options.folder), [], time.time()
    for op in op_db:
        if fnmatch.fnmatch(op.name, options.entries):
            entries.append(run_entry(recorder, op, options.samples, options.seconds))
    recorder.tensors.file.close()
    with open(options.folder / "calls.json", "w") as file:
        file.write('{"entries": ' + json.dumps(entries) + ',\n"skipped": ' + json.dumps(recorder.skipped) + ',\n"calls": [\n')
        file.write(",\n".join(json.dumps(call) for call in recorder.calls) + "\n]}\n")
    print(f"{len(entries)} entries, {len(recorder.calls)} calls of {len({call['op'] for call in recorder.calls})} ops, "
          f"{sum(bool(entry['errors']) for entry in entries)} entries with errors, {time.time() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
