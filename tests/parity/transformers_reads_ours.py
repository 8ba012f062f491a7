# SPDX-License-Identifier: Apache-2.0
"""Opens every model folder under FOLDER with transformers and compares its logits with the ones stored beside it (ours.tensors: ids, logits).

usage: transformers_reads_ours.py FOLDER
"""
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import exact_norms  # noqa: F401
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

if __name__ == "__main__":
    torch.set_num_threads(1)
    folders = sorted(os.listdir(sys.argv[1]))
    for name in folders:
        path = f"{sys.argv[1]}/{name}"
        stored = load_file(f"{path}/ours.tensors")
        model, info = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, output_loading_info=True)
        problems = {k: v for k, v in info.items() if k in ("missing_keys", "unexpected_keys", "mismatched_keys") and v}
        with torch.no_grad():
            logits = model.eval()(stored["ids"]).logits
        error = ((logits - stored["logits"]).abs().max() / logits.abs().max()).item()
        print(f"{name}: relative error {error:.1e}, {problems or 'all keys matched'}")
        assert not problems and error < 1e-9, name
    assert folders, "no model folder"
    print(f"ok {len(folders)}")
