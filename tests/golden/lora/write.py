#!/usr/bin/env python3
"""Writes the goldens in this folder: models of tests/golden/models with low-rank adapters of PEFT (Hugging
Face), in float64. Run by hand, with names of models or for all. Needs torch, peft and transformers: version 5
for Llama, whose golden is in this folder, and version 4 for the mixtures, each of which has a subfolder.
(Version 4 has a module for each matrix of each expert, so PEFT gives each expert its own adapters.)

adapters.safetensors has A and B of every projection (fp32, PEFT's names without its prefix), io.safetensors
input_ids and the logits, gradients.safetensors d loss / d A and d B, and golden.json the loss, the gradient
norm, and those of ten AdamW steps, as in tests/golden/models. Megatron-LM fuses q, k and v, and also gate and
up, so their adapters share one A. Here they share a Parameter, which is saved once under the first name. The
same applies to the gate and up of each expert. Routers are frozen and compute in float64, too.
"""

import json
import pathlib
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parent / "models"
DIM, ALPHA = 6, 9
FUSED = [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]]
# Mixtures take smaller steps. With larger steps, rounding to bf16 moves the last gradient norms by a tenth.
ADAMW = {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0, "decay_all_parameters": True}


def changes_of(name: str) -> dict:
    """Returns the changes of config.json. DeepSeek-V2 of version 4 omits YaRN's scale of the scores."""
    return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}} if name == "deepseek_v2" else {}


def read_config(name: str) -> transformers.PretrainedConfig:
    """Returns the configuration with version 4's names for version 5's rope_parameters and num_local_experts."""
    values = json.loads((MODELS / name / "config.json").read_text()) | changes_of(name)
    if int(transformers.__version__.split(".")[0]) < 5:
        rope = values.pop("rope_parameters")
        values["rope_theta"] = rope.pop("rope_theta")
        if rope["rope_type"] != "default":
            values["rope_scaling"] = rope
        if "num_local_experts" in values:
            values["num_experts"] = values.pop("num_local_experts")
    return transformers.AutoConfig.for_model(values.pop("model_type"), **values)


def in_float64(function):
    """Wraps a function so that dtype=torch.float32 becomes torch.float64."""
    def wrapped(*args, dtype=None, **rest):
        return function(*args, dtype=torch.float64 if dtype == torch.float32 else dtype, **rest)
    return wrapped


def write(name: str) -> None:
    base, to = MODELS / name, HERE if name == "llama" else HERE / name
    to.mkdir(exist_ok=True)
    torch.manual_seed(5)
    # Latent attention has no fused query, key and value projection, so only its output projection is adapted.
    groups = FUSED[1:] if name.startswith("deepseek") else FUSED
    model = transformers.AutoModelForCausalLM.from_pretrained(base, config=read_config(name), dtype=torch.float64,
                                                              attn_implementation="eager")
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=DIM, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=[matrix for group in groups for matrix in group]))
    model = model.double()
    for part in model.modules():
        for group in groups:
            if not hasattr(getattr(part, group[0], None), "lora_A"):
                continue
            first = getattr(part, group[0]).lora_A["default"]
            torch.nn.init.xavier_normal_(first.weight)
            for matrix in group:
                getattr(part, matrix).lora_A["default"].weight = first.weight
                torch.nn.init.normal_(getattr(part, matrix).lora_B["default"].weight, std=0.05)

    # Values rounded to fp32. named_parameters() lists a shared parameter once.
    trained = {name.removeprefix("base_model.model.").replace(".default", ""): p
               for name, p in model.named_parameters() if p.requires_grad}
    assert all(".lora_" in name for name in trained)
    with torch.no_grad():
        for p in trained.values():
            p.copy_(p.float().double())
    save_file({name: p.detach().float().contiguous() for name, p in trained.items()}, to / "adapters.safetensors")

    ids = load_file(base / "io.safetensors")["input_ids"].long()
    logits = model(ids).logits
    save_file({"input_ids": ids, "logits": logits.detach().float().contiguous()}, to / "io.safetensors")

    adamw = ADAMW | ({} if name == "llama" else {"lr": 0.003})
    optimizer = torch.optim.AdamW(trained.values(), lr=adamw["lr"], betas=adamw["betas"], eps=adamw["eps"],
                                  weight_decay=adamw["weight_decay"])
    trajectory = []
    for step in range(10):
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        for p in trained.values():  # zero for experts that no token chose, as in Primus
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        if step == 0:
            save_file({name: p.grad.float().contiguous() for name, p in trained.items()}, to / "gradients.safetensors")
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), adamw["clip"])
        trajectory.append([loss.item(), norm.item()])
        optimizer.step()
    golden = {"peft": peft.__version__, "transformers": transformers.__version__, "torch": torch.__version__,
              "lora": {"dim": DIM, "alpha": ALPHA}, "changes": changes_of(name), "loss": trajectory[0][0], "grad_norm": trajectory[0][1],
              "adamw": adamw, "trajectory_loss_gradnorm": trajectory}
    (to / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    torch.nn.functional.softmax = in_float64(torch.nn.functional.softmax)
    for model_name in sys.argv[1:] or ["llama", "qwen3_moe", "deepseek_v2"]:
        write(model_name)
