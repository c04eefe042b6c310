"""Shared by the scripts in this folder: ten training steps of a model in float64, and the files of a golden."""

import json
import pathlib

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "models"
ADAMW = {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0, "decay_all_parameters": True}


def initialise(model) -> None:
    """Draws the parameters of a model with linear attention. The norm of a head's first outputs amplifies rounding errors.
    The epsilon and the scales of the weights keep the errors within the accuracy of fp32 and bf16."""
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key.endswith("A_log"):
                p.copy_(torch.rand_like(p).mul(3).add(0.5).log())
            elif key.endswith("dt_bias"):
                p.copy_(torch.randn_like(p) * 0.5 - 1)
            elif key.endswith(".bias"):
                p.copy_(torch.randn_like(p) * 0.3)
            else:
                norm = "norm" in key or (".attn." in key and p.dim() == 1)
                scale = (2 if model.config.tie_word_embeddings else 8) if "embed" in key else 0.5
                fan = 1 if "conv1d" in key else p.shape[-1]
                p.copy_(torch.randn_like(p) * (0.1 if norm else scale * fan ** -0.5) + norm)


def separate_experts(name: str, tensor: torch.Tensor, gate: str, up: str, down: str) -> dict:
    """Returns the tensors of a parameter in a file with a tensor per expert; transformers has one for all experts."""
    at, _, last = name.rpartition(".")
    if last == "gate_up_proj":
        half = tensor.shape[1] // 2
        return {f"{at}.{e}.{w}.weight": part.contiguous() for e, both in enumerate(tensor)
                for w, part in ((gate, both[:half]), (up, both[half:]))}
    if last == "down_proj" and tensor.dim() == 3:
        return {f"{at}.{e}.{down}.weight": one.contiguous() for e, one in enumerate(tensor)}
    return {name: tensor.contiguous()}


def ten_steps(logits_of, trained: dict, ids: torch.Tensor) -> tuple:
    """Returns the losses and gradient norms of ten AdamW steps on the same tokens, and the first gradients."""
    optimizer = torch.optim.AdamW(trained.values(), lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"],
                                  weight_decay=ADAMW["weight_decay"])
    trajectory, gradients = [], {}
    for step in range(10):
        optimizer.zero_grad()
        # The loss is computed here, because the model's own loss would be in fp32.
        loss = torch.nn.functional.cross_entropy(logits_of(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        if step == 0:
            gradients = {key: p.grad.clone() for key, p in trained.items()}
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), ADAMW["clip"])
        trajectory.append([loss.item(), norm.item()])
        optimizer.step()
    return trajectory, gradients


def save_golden(folder: pathlib.Path, ids: torch.Tensor, logits: torch.Tensor, outcome: tuple, published,
                version: dict) -> None:
    """Writes io, gradients and the trajectory. `published` converts a parameter's name and values to the tensors
    of the file."""
    trajectory, gradients = outcome
    save_file({"input_ids": ids, "logits": logits.detach().to(torch.float32).contiguous()}, folder / "io.safetensors")
    save_file({name: values.to(torch.float32) for key, gradient in gradients.items()
               for name, values in published(key, gradient).items()}, folder / "grads.safetensors")
    golden = {**version, "loss": trajectory[0][0], "grad_norm": trajectory[0][1], "adamw": ADAMW,
              "trajectory_loss_gradnorm": trajectory}
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
