#!/usr/bin/env python3
"""Prints the table of README.md in this folder: how close bf16 can come to the goldens. Run by hand; needs
torch, transformers 5 and a built Primus:

    tests/golden/bf16_limits.py build/bin/primus

Each golden has three columns, each with the worst normalised error (max |a-b| / max |b|) against transformers
in float64:
  weights  float64 with weights rounded to bf16: a lower bound for bf16 training in any implementation
  peer     transformers in bf16, with eager attention
  Primus   primus model verify --dtype bf16

In mixtures of experts, every token uses the experts of the float64 run, as in `model verify`.
"""

import json
import pathlib
import subprocess
import sys

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

MODELS = pathlib.Path(__file__).resolve().parent / "models"
PLAIN_TOPK = torch.topk


class Choices:
    """Replaces torch.topk, which all routers call in a fixed order: records the choices of the first run, and
    repeats them in later runs."""

    def __init__(self):
        self.noted, self.next = [], None

    def replay(self):
        self.next = 0

    def __call__(self, scores, k, dim=-1, **options):
        if self.next is None:
            result = PLAIN_TOPK(scores, k, dim=dim, **options)
            self.noted.append(result.indices)
            return result
        indices = self.noted[self.next]
        self.next += 1
        return torch.return_types.topk((scores.gather(dim, indices), indices))


def run(folder, dtype, round_weights, choices):
    """Returns logits, and gradients by name, in float64."""
    torch.topk = choices
    torch.set_default_dtype(torch.float64)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager")
    if round_weights:
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.bfloat16())
    ids = load_file(folder / "io.safetensors")["input_ids"].long()
    logits = model(input_ids=ids, use_cache=False).logits.double()
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    torch.topk = PLAIN_TOPK
    return logits.detach(), {n: w.grad.double() for n, w in model.named_parameters() if w.grad is not None}


def error(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def compare(actual, expected):
    """Returns (error of the logits, worst error of a gradient, name of this gradient)."""
    errors = [(error(actual[1][n], g), n) for n, g in expected[1].items() if g.abs().max() > 0]
    return error(actual[0], expected[0]), *max(errors)


def of_primus(primus, folder):
    report = subprocess.run(
        [primus, "model", "verify", folder, "--inputs", folder / "io.safetensors", "--grads",
         folder / "grads.safetensors", "--dtype", "bf16", "--json"], capture_output=True, text=True)
    report = json.loads(report.stdout)
    worst = max(report["gradients"], key=lambda gradient: gradient["normalised_error"])
    return report["logits"]["normalised_error"], worst["normalised_error"], worst["name"]


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}\n")
    print("| golden | logits: weights, peer, Primus | worst gradient: weights | peer | Primus |\n|---|---|---|---|---|")
    for folder in sorted(path for path in MODELS.iterdir() if path.is_dir()):
        choices = Choices()
        expected = run(folder, torch.float64, False, choices)
        columns = []
        for dtype, round_weights in ((torch.float64, True), (torch.bfloat16, False)):
            choices.replay()
            columns.append(compare(run(folder, dtype, round_weights, choices), expected))
        columns.append(of_primus(sys.argv[1], folder))
        logits = ", ".join(f"{logits:.3f}" for logits, _, _ in columns)
        worst = " | ".join(f"{worst:.3f} {name.removeprefix('model.')}" for _, worst, name in columns)
        print(f"| {folder.name} | {logits} | {worst} |", flush=True)


if __name__ == "__main__":
    main()
