# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of the benchmarks: a plain Qwen3-style decoder in eager mode, one training step, FSDP2, tensor parallelism.

Run as a program it is one rank: peer.py SIZE STEPS BATCH SEQ [--fsdp | --tp] [--threads N]; rank 0 prints one JSON line.
"""
import json
import os
import resource
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.nn as nn
import torch.nn.functional as F

SIZES = {
    "tiny": dict(vocab_size=260, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=128),
    "small": dict(vocab_size=32000, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, head_dim=64, intermediate_size=1536),
}


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head_dim = config["head_dim"]
        hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
        self.query = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.key = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.output = nn.Linear(heads * self.head_dim, hidden, bias=False)
        self.query_norm, self.key_norm = RMSNorm(self.head_dim), RMSNorm(self.head_dim)

    def forward(self, x, cos, sin):
        batch, seq, _ = x.shape
        heads = lambda t: t.view(batch, seq, -1, self.head_dim)
        q = rotate(self.query_norm(heads(self.query(x))).transpose(1, 2), cos, sin)
        k = rotate(self.key_norm(heads(self.key(x))).transpose(1, 2), cos, sin)
        v = heads(self.value(x)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.output(out.transpose(1, 2).reshape(batch, seq, -1))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, ffn = config["hidden_size"], config["intermediate_size"]
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden = config["hidden_size"]
        self.attention_norm, self.attention = RMSNorm(hidden), Attention(config)
        self.mlp_norm, self.mlp = RMSNorm(hidden), Mlp(config)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    def __init__(self, config, seq):
        super().__init__()
        self.embed = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.blocks = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"])
        self.head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.embed.weight
        dim = config["head_dim"]
        angle = torch.outer(torch.arange(seq).float(), 1e6 ** (-torch.arange(0, dim, 2).float() / dim)).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def tensor_parallel(model, world):
    """Sequence and loss parallelism, PyTorch's recipe; the per-head norms stay whole on every rank."""
    from torch.distributed import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (world,))
    plan = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    for i in range(len(model.blocks)):
        plan |= {
            f"blocks.{i}.attention_norm": SequenceParallel(),
            f"blocks.{i}.attention": PrepareModuleInput(
                input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
            ),
            f"blocks.{i}.attention.query": ColwiseParallel(),
            f"blocks.{i}.attention.key": ColwiseParallel(),
            f"blocks.{i}.attention.value": ColwiseParallel(),
            f"blocks.{i}.attention.output": RowwiseParallel(output_layouts=Shard(1)),
            f"blocks.{i}.mlp_norm": SequenceParallel(),
            f"blocks.{i}.mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            f"blocks.{i}.mlp.gate": ColwiseParallel(),
            f"blocks.{i}.mlp.up": ColwiseParallel(),
            f"blocks.{i}.mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        }
    parallelize_module(model, mesh, plan)
    model.head.weight = model.embed.weight  # both shard the vocabulary


def clip_gradients(groups):
    """clip_grad_norm_ takes no mix of DTensors and plain tensors."""
    norms = [nn.utils.get_total_norm([p.grad for p in group]) for group in groups]
    total = torch.stack([n.full_tensor() if hasattr(n, "full_tensor") else n for n in norms]).norm()
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, 1.0, total)


def main(size, steps, batch, seq, mode, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = Decoder(SIZES[size], seq)
    rank = int(os.environ.get("RANK", 0))
    import contextlib

    loss_context = contextlib.nullcontext
    if mode:
        import torch.distributed as dist

        dist.init_process_group("gloo")
    if mode == "tp":
        from torch.distributed.tensor.parallel import loss_parallel as loss_context

        tensor_parallel(model, dist.get_world_size())
    if mode == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    parameters = list(model.parameters())
    groups = [[p for p in parameters if hasattr(p, "placements")], [p for p in parameters if not hasattr(p, "placements")]]
    groups = [group for group in groups if group]
    optimizer = torch.optim.AdamW([dict(params=group) for group in groups], 3e-4, fused=True)
    # Bytes of text, as the other side trains on.
    tokens = torch.randint(256, (batch, seq + 1), generator=torch.Generator().manual_seed(1 if mode == "tp" else 1 + rank))
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        logits = model(inputs)
        with loss_context():
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            loss.backward()
        if mode == "tp":
            for p in groups[1]:
                dist.all_reduce(p.grad)
            clip_gradients(groups)
        else:
            nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    if mode:
        dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(dict(seconds=seconds, max_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)))


if __name__ == "__main__":
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    threads = int(args.pop()) if "--threads" in sys.argv else 1
    mode = "fsdp" if "--fsdp" in sys.argv else "tp" if "--tp" in sys.argv else None
    main(args[0], int(args[1]), int(args[2]), int(args[3]), mode, threads)
