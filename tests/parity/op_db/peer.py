#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays recorded aten calls with PyTorch's DTensor: the same calls, meshes and layouts as a results file of op_db_replay.

peer.py FOLDER OURS RESULTS [--stride N]

RESULTS gets the same JSON lines as OURS. passed: equal to the recorded result on every rank. raised: every rank raised any exception.
wrong: all else. Ranks are threads on PyTorch's threaded process group, as in its own test of the operator database. The replay runs in a
child process; where it dies or hangs, that layout counts as wrong and a new child goes on after it.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg

JOBS_A_CHILD = 4000
PATIENCE_S, PATIENCE_AFTER_ERROR_S = 60, 3  # with ranks that don't come; shorter where another rank has raised
DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32, 7: torch.float64,
    8: torch.complex32, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16, 27: torch.uint16, 28: torch.uint32,
    29: torch.uint64,
}  # fmt: skip
MEMORY_FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
TOLERANCES = {torch.float64: (1e-9, 1e-10), torch.float32: (1e-5, 1e-5)}


class Recording:
    def __init__(self, folder):
        self.data = bytearray((folder / "tensors.bin").read_bytes())  # writable, as frombuffer wants it
        self.calls = json.loads((folder / "calls.json").read_text())["calls"]

    def tensor(self, dtype, sizes, offset):
        dtype, numel = DTYPES[dtype], 1
        for size in sizes:
            numel *= size
        if numel == 0:
            return torch.empty(sizes, dtype=dtype)
        return torch.frombuffer(self.data, dtype=dtype, count=numel, offset=offset).reshape(sizes).clone()

    def value(self, json_value, make):
        if isinstance(json_value, list):
            return [self.value(item, make) for item in json_value]
        if isinstance(json_value, str):
            return float(json_value) if json_value in ("nan", "inf", "-inf") else json_value
        if not isinstance(json_value, dict):
            return json_value
        ((kind, content),) = json_value.items()
        if kind == "tensor":
            return make(self.tensor(*content))
        if kind == "complex":
            return complex(*[float(part) for part in content])
        return {
            "dtype": lambda: DTYPES[content], "memory_format": lambda: MEMORY_FORMATS[content], "layout": lambda: torch.strided,
            "device": lambda: torch.device("cpu"),
        }[kind]()  # fmt: skip


def op_named(name):
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def placements_in(text):
    """[S(0), R], [P(sum), R] -> one list a tensor."""
    kinds = {"R": lambda dim: Replicate(), "S": lambda dim: Shard(int(dim)), "P": lambda dim: Partial("sum")}
    return [[kinds[kind](dim) for kind, dim in re.findall(r"([RSP])(?:\((\w+)\))?", one)] for one in re.findall(r"\[([^\]]*)\]", text)]


def distributed(whole, placements, mesh):
    rest, value = list(placements), whole
    for axis, placement in enumerate(placements):
        if isinstance(placement, Partial):
            coordinate = mesh.get_local_rank(axis)
            value = value * 2 if coordinate == 0 else -value if coordinate == 1 else torch.zeros_like(value)
            rest[axis] = Replicate()
    plain = distribute_tensor(value, mesh, rest, src_data_rank=None)
    if rest == list(placements):
        return plain
    return DTensor.from_local(plain.to_local().clone(), mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def close(found, expected):
    if not expected.dtype.is_floating_point and not expected.dtype.is_complex:
        return torch.equal(found, expected)
    if expected.numel() == 0:
        return True
    part = expected.real if expected.dtype.is_complex else expected
    relative, absolute = TOLERANCES.get(part.dtype, (1e-2, 1e-2))
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    a, b = found.to(wide), expected.to(wide)
    size = b.abs()
    finite = size[torch.isfinite(size)]
    scale = max(1.0, finite.max().item()) if finite.numel() else 1.0
    near = (a - b).abs() <= size * relative + absolute * scale
    both = torch.isfinite(a) & torch.isfinite(b)
    return bool(((both & near) | (a == b) | (torch.isnan(a) & torch.isnan(b))).all())


def difference(found, expected, random, what):
    if expected is None:
        return ""
    if isinstance(expected, (list, tuple)):
        if len(found) != len(expected):
            return f"{what} has {len(found)} items, not {len(expected)}"
        texts = [difference(a, b, random, f"{what}[{index}]") for index, (a, b) in enumerate(zip(found, expected))]
        return next((text for text in texts if text), "")
    if not isinstance(expected, torch.Tensor):
        same = found == expected or found != found or abs(found - expected) <= 1e-9 * max(1, abs(expected))
        return "" if random or same else f"{what} is another value"
    whole = found.full_tensor() if isinstance(found, DTensor) else found
    if found.shape != expected.shape or whole.shape != expected.shape:
        return f"{what} has sizes {list(found.shape)}, gathers to {list(whole.shape)}, not {list(expected.shape)}"
    if whole.dtype != expected.dtype:
        return f"{what} has dtype {whole.dtype}, not {expected.dtype}"
    placements = found.placements if isinstance(found, DTensor) else "plain"
    return "" if random or close(whole, expected) else f"{what} differs (its placements: {placements})"


class Replay:
    """One job on one rank, in two steps: the call, and the comparison."""

    def __init__(self, recording, job, mesh):
        self.recording, self.call, self.mesh = recording, recording.calls[job["call"]], mesh
        self.layouts = iter(placements_in(job["layout"]))

    def run(self):
        schema = op_named(self.call["op"])._schema
        self.arguments = self.recording.value(self.call["arguments"], lambda whole: distributed(whole, next(self.layouts), self.mesh))
        named = {a.name: value for a, value in zip(schema.arguments, self.arguments) if a.kwarg_only}
        results = op_named(self.call["op"])(*[v for a, v in zip(schema.arguments, self.arguments) if not a.kwarg_only], **named)
        self.results = [] if not schema.returns else [results] if len(schema.returns) == 1 else list(results)

    def compare(self):
        texts = []
        expected = self.recording.value(self.call["results"], lambda whole: whole)
        for index, (a, b) in enumerate(zip(self.results, expected)):
            texts.append(difference(a, b, self.call["random"], f"result {index}"))
        for position, value in self.call["written"].items():
            expected = self.recording.value(value, lambda whole: whole)
            texts.append(difference(self.arguments[int(position)], expected, self.call["random"], f"written argument {position}"))
        if any(texts):
            raise AssertionError(next(text for text in texts if text))


class Child:
    """Replays jobs[begin:end], all of one mesh, on ranks as threads; dies if the ranks part ways."""

    def __init__(self, recording, jobs, begin, end, results):
        self.recording, self.jobs, self.begin, self.end, self.results = recording, jobs, begin, end, results
        self.shape = jobs[begin]["mesh"]
        self.world_size = torch.Size(self.shape).numel()
        self.errors = [None] * self.world_size
        self.changed, self.arrived, self.round, self.outcome = threading.Condition(), 0, 0, []

    def run(self):
        torch._C._distributed_c10d._set_thread_isolation_mode(True)
        world, store = _install_threaded_pg(), dist.HashStore()
        threads = [threading.Thread(target=self.rank, args=(rank, store)) for rank in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del world

    def meet(self, rank, error):
        """All ranks' errors. If one doesn't come, it waits in a collective: this process is of no more use."""
        with self.changed:
            self.errors[rank] = error
            self.arrived += 1
            if self.arrived == self.world_size:
                self.outcome, self.arrived, self.errors = self.errors, 0, [None] * self.world_size
                self.round += 1
                self.changed.notify_all()
                return self.outcome
            mine = self.round
            patience = PATIENCE_AFTER_ERROR_S if error else PATIENCE_S
            if not self.changed.wait_for(lambda: self.round != mine, timeout=patience):
                os._exit(3)
            return self.outcome

    def attempt(self, rank, step):
        try:
            step()
            error = None
        except BaseException as caught:
            error = f"{type(caught).__name__}: {str(caught)[:300]}"
        return self.meet(rank, error)

    def rank(self, rank, store):
        dist.init_process_group(backend="threaded", rank=rank, world_size=self.world_size, store=store)
        mesh = dist.init_device_mesh("cpu", tuple(self.shape), mesh_dim_names=("a", "b")[: len(self.shape)])
        torch.set_grad_enabled(False)
        for index in range(self.begin, self.end):
            self.job(rank, index, mesh)

    def job(self, rank, index, mesh):
        replay = Replay(self.recording, self.jobs[index], mesh)
        errors = self.attempt(rank, replay.run)
        verdict, message = "passed", ""
        if all(errors):
            verdict, message = "raised", errors[0]
        elif any(errors):
            verdict, message = "wrong", "only some ranks raise: " + next(error for error in errors if error)
        else:
            errors = self.attempt(rank, replay.compare)
            if any(errors):
                verdict, message = "wrong", next(error for error in errors if error)
        if rank == 0:
            write(self.results, index, self.jobs[index], verdict, message)


def write(file, index, job, verdict, message):
    os.write(file, (json.dumps({"job": index, **job, "verdict": verdict, "message": message[:400]}) + "\n").encode())


def lines_in(path):
    return path.read_bytes().count(b"\n")


def run_child(recording, jobs, begin, end, results):
    pid = os.fork()
    if pid == 0:
        try:
            Child(recording, jobs, begin, end, results).run()
        finally:
            os._exit(0)
    return pid


def watch(pid, path):
    """Until the child ends, or does nothing for a minute."""
    last, since = -1, time.time()
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        time.sleep(0.05)
        done = path.stat().st_size
        if done != last:
            last, since = done, time.time()
        if time.time() - since > PATIENCE_S:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("ours", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--stride", type=int, default=1, help="only every N-th layout")
    parser.add_argument("--resume", action="store_true", help="go on after the lines that are in RESULTS")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    recording = Recording(options.folder)
    jobs = [json.loads(line) for line in options.ours.read_text().splitlines()][:: options.stride]
    jobs = [{key: job[key] for key in ("call", "op", "mesh", "layout")} for job in jobs]
    truncate = 0 if options.resume else os.O_TRUNC
    results = os.open(options.results, os.O_WRONLY | os.O_CREAT | os.O_APPEND | truncate)
    done = lines_in(options.results)
    while done < len(jobs):
        end = done + 1
        while end < len(jobs) and end < done + JOBS_A_CHILD and jobs[end]["mesh"] == jobs[done]["mesh"]:
            end += 1
        watch(run_child(recording, jobs, done, end, results), options.results)
        done = lines_in(options.results)
        if done < end:
            write(results, done, jobs[done], "wrong", "the ranks hang or the process dies")
            done += 1


if __name__ == "__main__":
    main()
