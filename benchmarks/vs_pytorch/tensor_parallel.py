# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism over two ranks with sequence and loss parallelism beside PyTorch's, and beside our own run of one rank on two threads."""
import json
import statistics

from common import OurRun, emit, peer_command, run

BATCH, SEQ, WARMUP, STEPS = 2, 512, 2, 8
TOKENS = BATCH * SEQ


def rate(seconds):
    return TOKENS / statistics.median(seconds[WARMUP:])


def our_run(ranks, rank_mode, threads, tp):
    metrics = OurRun("small", WARMUP + STEPS, BATCH, SEQ, ranks, rank_mode, threads, tp).metrics()
    # Ranks as threads share one process: its peak is divided by them.
    return rate([m["step_seconds"] for m in metrics]), metrics[-1]["max_rss_bytes"] / (ranks if rank_mode == "threads" else 1)


peer = json.loads(run(peer_command("small", WARMUP + STEPS, BATCH, SEQ, 2, 1, "--tp")).strip().splitlines()[-1])
one_rank, _ = our_run(1, "threads", 2, 1)
for rank_mode in ("threads", "processes"):
    ours, ours_bytes = our_run(2, rank_mode, 1, 2)
    emit("tensor_parallel", f"tp2_{rank_mode}", ours, rate(peer["seconds"]), "tokens/s")
    emit("tensor_parallel_memory", f"tp2_{rank_mode}", ours_bytes, peer["max_rss_bytes"], "bytes a rank")
    emit("tensor_parallel_scaling", f"tp2_{rank_mode}_to_one_rank_2_threads", ours, one_rank, "tokens/s")
