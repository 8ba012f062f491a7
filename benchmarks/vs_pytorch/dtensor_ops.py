# SPDX-License-Identifier: Apache-2.0
"""Our DTensor ops beside PyTorch's, the cases of PyTorch's own DTensor benchmark; 10 x 10 f32, a group of one rank, microseconds per call."""
import json
import time

import torch
import torch.distributed as dist
from common import ROOT, emit, run
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

RUNS, CALLS = 9, 500


def best_us(op):
    for _ in range(100):
        op()
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(CALLS):
            op()
        best = min(best, (time.perf_counter() - start) / CALLS)
    return best * 1e6


def pytorch_cases():
    mesh = dist.init_device_mesh("cpu", (1,))
    local = torch.ones(10, 10)

    def wrap(placement, grad=False):
        return DTensor.from_local(local.clone(), mesh, [placement], run_check=False).requires_grad_(grad)

    s, r, p = wrap(Shard(0)), wrap(Replicate()), wrap(Partial())
    sg, ones, plain_leaf = wrap(Shard(0), True), wrap(Shard(0)), local.clone().requires_grad_()
    return {
        "detach": lambda: s.detach(),
        "to_local": lambda: s.to_local(),
        "to_local_grad": lambda: sg.to_local(),
        "from_local": lambda: DTensor.from_local(local, mesh, [Shard(0)], run_check=False),
        "from_local_grad": lambda: DTensor.from_local(plain_leaf, mesh, [Shard(0)], run_check=False),
        "redistribute_S0_R": lambda: s.redistribute(mesh, [Replicate()]),
        "redistribute_S0_S1": lambda: s.redistribute(mesh, [Shard(1)]),
        "redistribute_R_S0": lambda: r.redistribute(mesh, [Shard(0)]),
        "redistribute_P_R": lambda: p.redistribute(mesh, [Replicate()]),
        "redistribute_S0_S0": lambda: s.redistribute(mesh, [Shard(0)]),
        "add": lambda: s + s,
        "add_forward_backward": lambda: torch.autograd.grad(sg + sg, sg, ones),
        "add_": lambda: s.add_(s),
        "view": lambda: r.view(100),
        "mm": lambda: torch.mm(r, r),
        "uniform_": lambda: r.uniform_(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    ours = {}
    for line in run([ROOT / "build/release/benchmarks/bench_dtensor_ops"]).splitlines():
        case = json.loads(line)
        ours[case["case"]] = case["ours"]
    for name, op in pytorch_cases().items():
        emit("dtensor_ops_vs_pytorch", name, ours[name], best_us(op), "us")
    dist.destroy_process_group()
