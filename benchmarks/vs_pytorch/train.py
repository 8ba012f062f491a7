# SPDX-License-Identifier: Apache-2.0
"""Training speed and peak memory of a 41.6 M parameter Qwen3-style model (f32, sequence 512, batch 2 a rank) beside PyTorch eager and FSDP2."""
import json
import statistics
import sys

from common import OurRun, emit, peer_command, run

BATCH, SEQ, WARMUP, STEPS = 2, 512, 2, 8
CASES = {  # name: (ranks, rank mode, threads a rank)
    "one_rank_1_thread": (1, "threads", 1),
    "one_rank_2_threads": (1, "threads", 2),
    "fsdp_2_ranks_processes": (2, "processes", 1),
    "fsdp_2_ranks_threads": (2, "threads", 1),
}

for name in sys.argv[1:] or CASES:
    ranks, rank_mode, threads = CASES[name]
    metrics = OurRun("small", WARMUP + STEPS, BATCH, SEQ, ranks, rank_mode, threads).metrics()
    peer = json.loads(run(peer_command("small", WARMUP + STEPS, BATCH, SEQ, ranks, threads)).strip().splitlines()[-1])
    tokens = ranks * BATCH * SEQ
    ours = tokens / statistics.median(m["step_seconds"] for m in metrics[WARMUP:])
    theirs = tokens / statistics.median(peer["seconds"][WARMUP:])
    emit("train", name, ours, theirs, "tokens/s")
    # Ranks as threads share one process: its peak is divided by them.
    ours_bytes = metrics[-1]["max_rss_bytes"] / (ranks if rank_mode == "threads" else 1)
    emit("train_memory", name, ours_bytes, peer["max_rss_bytes"], "bytes a rank")
