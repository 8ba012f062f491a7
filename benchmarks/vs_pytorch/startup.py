# SPDX-License-Identifier: Apache-2.0
"""Wall seconds from process start to exit of a tiny two-rank FSDP run of one step, beside torchrun with FSDP2."""
import sys

from common import OurRun, emit, peer_command, wall_seconds

REPEATS, BATCH, SEQ = 3, 2, 32

peer = wall_seconds(peer_command("tiny", 1, BATCH, SEQ, ranks=2), REPEATS)
for rank_mode in sys.argv[1:] or ["processes", "threads"]:
    ours = OurRun("tiny", 1, BATCH, SEQ, 2, rank_mode)  # holds the folder
    emit("startup", f"fsdp_2_ranks_{rank_mode}", wall_seconds(ours.command, REPEATS), peer, "s")
