#!/usr/bin/env python3
"""Writes the golden beside this file: the Llama of tests/golden/models with low-rank adapters of PEFT (Hugging Face),
in float64. Run by hand; needs torch, transformers 5 and peft.

adapters.safetensors has A and B of every projection (fp32, PEFT's names without its prefix), io.safetensors input_ids
and the logits, gradients.safetensors d loss / d A and d B, golden.json the loss, the gradient norm, and those of ten
AdamW steps, as in tests/golden/models. Megatron-LM fuses q, k and v, and gate and up: their adapters have one A there,
and here the same Parameter, which is saved once, under the first name.
"""

import json
import pathlib

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
BASE = HERE.parent / "models" / "llama"
DIM, ALPHA = 6, 9
FUSED = [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]]
ADAMW = {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0, "decay_all_parameters": True}


def main() -> None:
    torch.manual_seed(5)
    base = transformers.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float64, attn_implementation="eager")
    model = peft.get_peft_model(base, peft.LoraConfig(
        r=DIM, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=[name for group in FUSED for name in group]))
    model = model.double()
    for layer in model.base_model.model.model.layers:
        for group in FUSED:
            part = layer.self_attn if hasattr(layer.self_attn, group[0]) else layer.mlp
            first = getattr(part, group[0]).lora_A["default"]
            torch.nn.init.xavier_normal_(first.weight)
            for name in group:
                getattr(part, name).lora_A["default"].weight = first.weight
                torch.nn.init.normal_(getattr(part, name).lora_B["default"].weight, std=0.05)

    # As fp32 holds them. named_parameters() has a shared one once.
    trained = {name.removeprefix("base_model.model.").replace(".default", ""): p
               for name, p in model.named_parameters() if p.requires_grad}
    assert all(".lora_" in name for name in trained)
    with torch.no_grad():
        for p in trained.values():
            p.copy_(p.float().double())
    save_file({name: p.detach().float().contiguous() for name, p in trained.items()}, HERE / "adapters.safetensors")

    ids = load_file(BASE / "io.safetensors")["input_ids"].long()
    logits = model(ids).logits
    save_file({"input_ids": ids, "logits": logits.detach().float().contiguous()}, HERE / "io.safetensors")

    optimizer = torch.optim.AdamW(trained.values(), lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"],
                                  weight_decay=ADAMW["weight_decay"])
    trajectory = []
    for step in range(10):
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        if step == 0:
            save_file({name: p.grad.float().contiguous() for name, p in trained.items()}, HERE / "gradients.safetensors")
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), ADAMW["clip"])
        trajectory.append([loss.item(), norm.item()])
        optimizer.step()
    golden = {"peft": peft.__version__, "transformers": transformers.__version__, "torch": torch.__version__,
              "lora": {"dim": DIM, "alpha": ALPHA}, "loss": trajectory[0][0], "grad_norm": trajectory[0][1],
              "adamw": ADAMW, "trajectory_loss_gradnorm": trajectory}
    (HERE / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
