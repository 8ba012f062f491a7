# SPDX-License-Identifier: Apache-2.0
"""Makes transformers' RMSNorm compute f64 models in f64: its own forward casts to f32, which hides every error below 1e-7. f32 is unchanged."""
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm


def forward(self, x):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * wide.to(x.dtype)


LlamaRMSNorm.forward = Qwen3RMSNorm.forward = forward
