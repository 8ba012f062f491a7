# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: where things are, one of our runs, one of PyTorch's, the result line."""
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from peer import SIZES

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = ROOT / "build/release/bin/hyper-parallel"
PEER = pathlib.Path(__file__).resolve().parent / "peer.py"
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", PYTHONWARNINGS="ignore")


def emit(bench, case, ours, peer, unit, **more):
    """ratio: how many times better ours is (times and bytes: peer/ours; rates: ours/peer)."""
    ratio = ours / peer if unit.endswith("/s") else peer / ours
    line = dict(bench=bench, case=case, ours=float(f"{ours:.4g}"), peer=float(f"{peer:.4g}"), unit=unit, ratio=float(f"{ratio:.3g}"), **more)
    print(json.dumps(line), flush=True)


def run(command, environment=ENVIRONMENT):
    result = subprocess.run([str(c) for c in command], env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {result.returncode}:\n{result.stderr[-2000:]}")
    return result.stdout


class OurRun:
    """A training run of the binary on random bytes, in a temporary folder."""

    def __init__(self, size, steps, batch, seq, ranks=1, rank_mode="threads", threads=1, tp=1):
        self.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self.folder.name)
        (folder / "text").write_bytes(random.Random(0).randbytes((steps * ranks * batch + 8) * (seq + 1)))
        config = dict(
            output_dir=str(folder / "out"),
            launcher=dict(ranks=ranks, rank_mode=rank_mode, threads_per_rank=threads),
            model=dict(type="qwen3", config=dict(SIZES[size], max_position_embeddings=seq, tie_word_embeddings=True, rope_theta=1e6)),
            optimizer=dict(lr=3e-4),
            training=dict(train_iters=steps, global_batch_size=batch * ranks // tp, micro_batch_size=batch),
            accelerator=dict(tp_size=tp, sequence_parallel=tp > 1),
            dataset=dict(paths=[str(folder / "text")], sequence_length=seq),
            checkpoint=dict(save_final=False),
        )
        (folder / "run.yaml").write_text(json.dumps(config))
        self.command = [BINARY, "train", folder / "run.yaml"]

    def metrics(self):
        run(self.command)
        lines = (pathlib.Path(self.folder.name) / "out/metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def peer_command(size, steps, batch, seq, ranks=1, threads=1, mode="--fsdp"):
    arguments = [PEER, size, steps, batch, seq] + ([mode] if ranks > 1 else []) + ["--threads", threads]
    if ranks == 1:
        return [sys.executable] + arguments
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks] + arguments


def wall_seconds(command, repeats):
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run(command)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])  # the first fills the page cache
