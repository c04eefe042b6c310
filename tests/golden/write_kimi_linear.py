#!/usr/bin/env python3
"""Writes the golden models/kimi_linear: a tiny Kimi Linear of transformers in float64, as README.md beside this file
says what a golden holds. Run by hand; needs torch and transformers 5.

Four layers: dense with delta attention, then mixtures with delta, latent and delta attention. transformers computes the
delta rule, its gates and the router in float32 whatever the model's type; here its source runs with float64 written in
those places. Files have the published names: a tensor for each expert, and for each of the three convolutions.
transformers' own conversion writes them, but for the dense layer, whose `mlp` it calls block_sparse_moe, too.
"""

import importlib
import inspect
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent / "models"
ADAMW = {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0, "decay_all_parameters": True}
CONFIG = transformers.KimiLinearConfig(
    vocab_size=320, hidden_size=64, intermediate_size=112, moe_intermediate_size=24, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=4, num_experts=8, num_experts_per_token=3, num_shared_experts=1,
    num_expert_group=1, topk_group=1, routed_scaling_factor=1.5, kv_lora_rank=16, q_lora_rank=None, qk_nope_head_dim=12,
    qk_rope_head_dim=8, v_head_dim=16, model_max_length=128, rms_norm_eps=0.1,
    linear_attn_config={"head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4, "kda_layers": [1, 2, 4],
                        "full_attn_layers": [3]},
    pad_token_id=None, bos_token_id=None, eos_token_id=None, use_cache=False)


def in_float64():
    """The module of Kimi Linear, computing all in float64."""
    module = importlib.import_module("transformers.models.kimi_linear.modeling_kimi_linear")
    source = inspect.getsource(module).replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    return module


def published(name: str, tensor: torch.Tensor) -> dict:
    """The tensors that a parameter is in files."""
    tensor = tensor.detach().float()
    name = name.replace(".forget_gate.", ".")
    at, _, last = name.rpartition(".")
    if at.endswith(".conv1d"):
        return {f"{at.removesuffix('conv1d')}{x}_conv1d.weight": part.contiguous()
                for x, part in zip("qkv", tensor.chunk(3))}
    routed = ".layers.0." not in name
    if routed:
        at, name = (text.replace(".mlp.", ".block_sparse_moe.") for text in (at, name))
    if last == "gate_up_proj":
        half = tensor.shape[1] // 2
        return {f"{at}.{e}.{w}.weight": part.contiguous() for e, both in enumerate(tensor)
                for w, part in (("w1", both[:half]), ("w3", both[half:]))}
    if last == "down_proj" and tensor.dim() == 3:
        return {f"{at}.{e}.w2.weight": one.contiguous() for e, one in enumerate(tensor)}
    return {name: tensor.contiguous()}


# The norm of what a head's first token reads multiplies rounding errors: its epsilon and the scales of the weights are
# such that this stays within what fp32 and bf16 have.
def initialise(model) -> None:
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key.endswith("A_log"):
                p.copy_(torch.rand_like(p).mul(3).add(0.5).log())
            elif key.endswith("dt_bias"):
                p.copy_(torch.randn_like(p) * 0.5 - 1)
            else:
                norm = "norm" in key
                scale = 8 if "embed" in key else 0.5
                fan = 1 if "conv1d" in key else p.shape[-1]
                p.copy_(torch.randn_like(p) * (0.1 if norm else scale * fan ** -0.5) + norm)
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.1)


def main() -> None:
    torch.manual_seed(17)
    folder = HERE / "kimi_linear"
    module = in_float64()
    CONFIG._attn_implementation = "eager"
    CONFIG._experts_implementation = "eager"
    model = module.KimiLinearForCausalLM(CONFIG).float()
    initialise(model)
    model.save_pretrained(folder)
    saved = {k.replace("layers.0.block_sparse_moe.", "layers.0.mlp."): v
             for k, v in load_file(folder / "model.safetensors").items()}
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})
    model = model.double()
    named = dict(model.named_parameters())
    ours = {k for key, p in named.items() for k in published(key, p)}
    saved = {key for key in saved if not key.endswith("e_score_correction_bias")}
    assert ours == saved, ours ^ saved

    ids = torch.randint(0, CONFIG.vocab_size, (2, 24))
    logits = model(ids).logits
    assert logits.dtype == torch.float64
    save_file({"input_ids": ids, "logits": logits.detach().float().contiguous()}, folder / "io.safetensors")
    optimizer = torch.optim.AdamW(named.values(), lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"],
                                  weight_decay=ADAMW["weight_decay"])
    trajectory = []
    for step in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        if step == 0:
            save_file({k: v for key, p in named.items() for k, v in published(key, p.grad).items()},
                      folder / "grads.safetensors")
        norm = torch.nn.utils.clip_grad_norm_(named.values(), ADAMW["clip"])
        trajectory.append([loss.item(), norm.item()])
        optimizer.step()
    golden = {"transformers": transformers.__version__, "loss": trajectory[0][0], "grad_norm": trajectory[0][1],
              "adamw": ADAMW, "trajectory_loss_gradnorm": trajectory}
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


main()
