#!/usr/bin/env python3
"""Writes the variants beside this file: goldens of tests/golden/models under another config.json, whose weights still
fit. For what the goldens' own configurations leave at its neutral value. Run by hand; needs torch and transformers 5.

NAME.json has the golden and what changes (null: the key is taken out), NAME.safetensors input_ids [1, 24] and the
logits [1, 24, vocab], computed by transformers in float64 and stored in fp32.
"""

import json
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
THETA = {"rope_theta": 10000.0}
VARIANTS = {
    "temperature_tuning": ("llama4", {"floor_scale": 4, "attn_scale": 0.3}),
    "groups_by_best": ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}),
    "weights_as_they_are": ("qwen3_moe", {"norm_topk_prob": False}),
    "sigmoids_as_they_are": ("deepseek_v3", {"norm_topk_prob": False}),
    "windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "layer_types": None}),
    "rope_linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0} | THETA}),
    "rope_llama3": ("llama", {"rope_parameters": {
        "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
        "original_max_position_embeddings": 16} | THETA}),
    "rope_attention_factor": ("llama", {"rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3, "original_max_position_embeddings": 16} | THETA}),
    "rope_mscale": ("deepseek_v3", {"rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.2,
        "original_max_position_embeddings": 16} | THETA}),
    "absent_keys": ("deepseek_v3", {"routed_scaling_factor": None, "norm_topk_prob": None}),
}


def main() -> None:
    for name, (golden, changes) in VARIANTS.items():
        source = HERE.parent / "models" / golden
        config = json.loads((source / "config.json").read_text())
        for key, value in changes.items():
            config.pop(key, None)
            if value is not None:
                config[key] = value
        input_ids = load_file(source / "io.safetensors")["input_ids"][:1].contiguous()
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
            shutil.copy(source / "model.safetensors", folder)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                                         experts_implementation="eager")
            with torch.no_grad():
                logits = model.eval()(input_ids).logits
        original = load_file(source / "io.safetensors")["logits"][:1].double()
        moved = float((logits - original).abs().max() / original.abs().max())
        print(f"{name:22} {golden:12} differs from the golden by {moved:.1e}")
        save_file({"input_ids": input_ids, "logits": logits.float().contiguous()}, HERE / f"{name}.safetensors")
        (HERE / f"{name}.json").write_text(json.dumps({"golden": golden, "changes": changes}) + "\n")


if __name__ == "__main__":
    main()
