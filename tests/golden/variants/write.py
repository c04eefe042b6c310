#!/usr/bin/env python3
"""Writes the variants in this folder: goldens of tests/golden/models with another config.json that fits the
same weights. They cover settings that are neutral in the goldens' own configurations. Run by hand, with names
or for all; needs torch and transformers 5.

NAME.json has the golden and the changed keys (null removes a key), and NAME.safetensors input_ids [1, 24] and
the logits [1, 24, vocab], computed by transformers in float64 and stored in fp32. NAME.gradients.safetensors
has d loss / d weight of every weight under its published name, as a sketch (sketch() below) of 256 numbers,
because the full gradients take several megabytes.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy
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
    # In DeepSeek-V4, the branches main and compress override the other rope keys. YaRN's attention factor is not set,
    # so it is computed.
    "rope_branches": ("deepseek_v4", {
        "partial_rotary_factor": None, "qk_rope_head_dim": None, "rope_theta": 123.0, "compress_rope_theta": 456.0,
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 1 / 3},
            "compress": {"rope_type": "yarn", "rope_theta": 2000.0, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.2,
                         "original_max_position_embeddings": 16, "partial_rotary_factor": 1 / 3}}}),
    # 7 of 16 columns give 4 frequencies, which rotate 8 columns.
    "rope_odd_columns": ("qwen3_next", {
        "partial_rotary_factor": 0.45,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.45} | THETA}),
    "absent_keys": ("deepseek_v3", {"routed_scaling_factor": None, "norm_topk_prob": None}),
}
SKETCH = 256


def sketch(values: numpy.ndarray) -> numpy.ndarray:
    """Returns sums of SKETCH groups of elements with random signs. The hash (splitmix64) of an element's index in the
    row-major tensor gives its group by the low bits, and its sign by the highest bit (1 means minus). Every element
    counts, and typical arithmetic errors do not cancel."""
    flat = values.astype(numpy.float64).ravel()
    hashed = (numpy.arange(flat.size, dtype=numpy.uint64) + numpy.uint64(1)) * numpy.uint64(0x9E3779B97F4A7C15)
    hashed = (hashed ^ hashed >> numpy.uint64(30)) * numpy.uint64(0xBF58476D1CE4E5B9)
    hashed = (hashed ^ hashed >> numpy.uint64(27)) * numpy.uint64(0x94D049BB133111EB)
    hashed ^= hashed >> numpy.uint64(31)
    signs = numpy.where(hashed >> numpy.uint64(63), -1.0, 1.0)
    return numpy.bincount((hashed % numpy.uint64(SKETCH)).astype(numpy.int64), signs * flat, SKETCH)


def gradients(model: torch.nn.Module, folder: pathlib.Path) -> dict[str, torch.Tensor]:
    """Returns the gradients under published names: transformers renames and splits parameters when saving."""
    for parameter in model.parameters():
        frozen = parameter.grad is None  # for example an indexer, which is omitted
        parameter.data = torch.full_like(parameter, torch.nan) if frozen else parameter.grad
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.data = torch.full_like(buffer, torch.nan)
    model.save_pretrained(folder)
    return {name: value for name, value in load_file(folder / "model.safetensors").items()
            if value.is_floating_point() and not value.isnan().all()}


def main() -> None:
    for name in sys.argv[1:] or VARIANTS:
        golden, changes = VARIANTS[name]
        source = HERE.parent / "models" / golden
        config = json.loads((source / "config.json").read_text())
        for key, value in changes.items():
            config.pop(key, None)
            if value is not None:
                config[key] = value
        input_ids = load_file(source / "io.safetensors")["input_ids"][:1].contiguous()
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            (folder / "config.json").write_text(json.dumps(config))
            shutil.copy(source / "model.safetensors", folder)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                                         experts_implementation="eager").eval()
            logits = model(input_ids).logits
            loss = torch.nn.functional.cross_entropy(logits[0, :-1], input_ids[0, 1:])
            loss.backward()
            by_name = gradients(model, folder / "gradients")
        original = load_file(source / "io.safetensors")["logits"][:1].double()
        logits = logits.detach()
        moved = float((logits - original).abs().max() / original.abs().max())
        print(f"{name:22} {golden:12} loss {loss.item():.6f}, differs from the golden by {moved:.1e}")
        save_file({"input_ids": input_ids, "logits": logits.float().contiguous()}, HERE / f"{name}.safetensors")
        save_file({key: torch.from_numpy(sketch(value.numpy())).float() for key, value in by_name.items()},
                  HERE / f"{name}.gradients.safetensors")
        (HERE / f"{name}.json").write_text(json.dumps({"golden": golden, "changes": changes}) + "\n")


if __name__ == "__main__":
    main()
