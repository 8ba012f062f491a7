# SPDX-License-Identifier: Apache-2.0
"""Writes, for each case below, a Hugging Face folder and what transformers computes with it (reference.safetensors).

usage: transformers_reference.py FOLDER
keys: ids, labels, prompt.N, greedy.N, and for f64 and f32: TYPE.logits, TYPE.loss (a sum), TYPE.grad.NAME
"""
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import exact_norms  # noqa: F401
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

QWEN3, LLAMA = (Qwen3Config, Qwen3ForCausalLM), (LlamaConfig, LlamaForCausalLM)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
SIZES = dict(vocab_size=257, num_hidden_layers=2, initializer_range=0.2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, use_cache=True)

# name: (classes, configuration, dtype on disk, save_pretrained arguments)
CASES = {
    "qwen3_gqa_tied": (QWEN3, dict(hidden_size=40, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True), "float64", {}),
    "qwen3_mha_untied_bias": (QWEN3, dict(hidden_size=23, intermediate_size=31, num_attention_heads=3, num_key_value_heads=3, head_dim=8, attention_bias=True, rope_parameters=dict(rope_type="default", rope_theta=1e6)), "float64", dict(max_shard_size="20KB")),
    "qwen3_mqa_bf16": (QWEN3, dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=1, head_dim=10), "bfloat16", {}),
    "llama_gqa_untied_llama3": (LLAMA, dict(hidden_size=48, intermediate_size=72, num_attention_heads=6, num_key_value_heads=2, rope_parameters=LLAMA3), "float64", {}),
    "llama_mha_tied_bias_linear": (LLAMA, dict(hidden_size=36, intermediate_size=50, num_attention_heads=3, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.0)), "float64", {}),
    "llama_head_dim_f16": (LLAMA, dict(hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=4, head_dim=6), "float16", dict(max_shard_size="30KB")),
}


def backward(model, ids, labels, prefix):
    model.zero_grad(set_to_none=True)
    logits = model(ids).logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    loss.backward()
    out = {f"{prefix}.logits": logits.detach(), f"{prefix}.loss": loss.detach()}
    return out | {f"{prefix}.grad.{name}": p.grad.clone() for name, p in model.named_parameters()}


def write(folder, name, classes, config, dtype, save_options, seed):
    torch.manual_seed(seed)
    model = classes[1](classes[0](**SIZES, **config)).double()
    with torch.no_grad():
        for p in model.parameters():  # norms and biases too: ones and zeros would hide mistakes
            p.add_(torch.randn_like(p) * 0.1)
    path = f"{folder}/{name}"
    model.to(getattr(torch, dtype)).save_pretrained(path, **save_options)
    model = classes[1].from_pretrained(path, dtype=torch.float64).eval()  # .double() after .bfloat16() would keep rounded rotary frequencies
    ids, labels = torch.randint(257, (2, 19)), torch.randint(257, (2, 19))
    labels[torch.rand(labels.shape) < 0.3] = -100
    out = dict(ids=ids, labels=labels) | backward(model, ids, labels, "f64")
    for i, length in enumerate((7, 1, 4)):
        prompt = torch.randint(257, (1, length))
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=16, pad_token_id=0)
        out |= {f"prompt.{i}": prompt[0], f"greedy.{i}": made[0, length:].clone()}
    out |= backward(model.float(), ids, labels, "f32")
    save_file(out, f"{path}/reference.tensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed, (name, (classes, config, dtype, save_options)) in enumerate(CASES.items()):
        write(sys.argv[1], name, classes, config, dtype, save_options, seed)
