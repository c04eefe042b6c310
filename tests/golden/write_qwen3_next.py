#!/usr/bin/env python3
"""Writes the goldens models/qwen3_next, models/qwen3_5_moe and models/qwen3_5: tiny models of transformers in float64,
as README.md beside this file says what a golden holds. Run by hand; needs torch and transformers 5.

transformers runs its gated delta rule in fp32 whatever the model's type is; here it runs in the model's. It keeps all
experts in one tensor; files have them apart, as what it saves. Epsilons of norms are large: where a state has little in
it yet, its norm divides by little, and ten steps would make much of the rounding of the first.
"""

import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next

HERE = pathlib.Path(__file__).resolve().parent / "models"
ADAMW = {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0, "decay_all_parameters": True}
COMMON = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-2, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
          "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 8,
          "linear_conv_kernel_dim": 4, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "use_cache": False}
EXPERTS = {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "num_experts": 8, "num_experts_per_tok": 3}
MODELS = {
    "qwen3_next": transformers.Qwen3NextConfig(**COMMON, **EXPERTS, intermediate_size=112, mlp_only_layers=[1],
                                               rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                                                                "partial_rotary_factor": 0.5}),
    "qwen3_5_moe": transformers.Qwen3_5MoeTextConfig(**COMMON, **EXPERTS),
    "qwen3_5": transformers.Qwen3_5TextConfig(**{**COMMON, "linear_num_key_heads": 4}, intermediate_size=112,
                                              tie_word_embeddings=True),
}


def delta_rule(query, key, value, g, beta, **_):
    """The gated delta rule, token by token, as torch_recurrent_gated_delta_rule has it with normalised queries and keys."""
    def heads(x):
        x = x.repeat_interleave(value.shape[2] // x.shape[2], dim=2)
        return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)

    q, k = heads(query) / query.shape[-1] ** 0.5, heads(key)
    state = value.new_zeros(value.shape[0], value.shape[2], q.shape[-1], value.shape[-1])
    out = []
    for t in range(value.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        u = (value[:, t] - (state * k[:, t].unsqueeze(-1)).sum(-2)) * beta[:, t].unsqueeze(-1)
        state = state + k[:, t].unsqueeze(-1) * u.unsqueeze(-2)
        out.append((state * q[:, t].unsqueeze(-1)).sum(-2))
    return torch.stack(out, dim=1), None


class Float64(torch.nn.Module):
    """Nothing that the model does is rounded to fp32 on the way."""

    def __enter__(self):
        self.float, self.softmax, self.to = torch.Tensor.float, torch.nn.functional.softmax, torch.Tensor.to
        torch.Tensor.float = lambda x, *_, **__: x
        torch.nn.functional.softmax = lambda x, *a, dtype=None, **k: self.softmax(x, *a, **k)
        torch.Tensor.to = lambda x, *a, **k: x if torch.float32 in (*a, k.get("dtype")) and x.dtype == torch.float64 else self.to(x, *a, **k)

    def __exit__(self, *_):
        torch.Tensor.float, torch.nn.functional.softmax, torch.Tensor.to = self.float, self.softmax, self.to


def published(name: str, tensor: torch.Tensor) -> dict:
    """The tensors that a parameter is in files."""
    tensor = torch.Tensor.detach(tensor).to(torch.float32)
    at, _, last = name.rpartition(".")
    if last == "gate_up_proj":
        half = tensor.shape[1] // 2
        return {f"{at}.{e}.{w}.weight": part.contiguous() for e, both in enumerate(tensor)
                for w, part in (("gate_proj", both[:half]), ("up_proj", both[half:]))}
    if last == "down_proj":
        return {f"{at}.{e}.down_proj.weight": one.contiguous() for e, one in enumerate(tensor)}
    return {name: tensor.contiguous()}


def write(name: str, config) -> None:
    torch.manual_seed(18)  # with 17, the gradient of one norm's eight weights nearly cancels, and bf16 rounding is 6% of it
    folder = HERE / name
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager").float()
    with torch.no_grad():
        for key, p in model.named_parameters():
            one = key.endswith("linear_attn.norm.weight")  # other norms are around zero
            if key.endswith("A_log"):
                p.copy_(torch.log(torch.rand_like(p) + 0.1))  # so that much of a state is left after some tokens
            elif p.dim() == 1:
                p.copy_(torch.randn_like(p) * 0.1 + one * 0.5)
            else:
                scale = 0.7 if "conv1d" in key else p.shape[-1] ** -0.5 * (1 if "embed" in key else 0.5)
                p.copy_(torch.randn_like(p) * scale)
    model.save_pretrained(folder)
    saved = set(load_file(folder / "model.safetensors"))
    model = model.double()
    named = dict(model.named_parameters())
    ours = {k for key, p in named.items() for k in published(key, p)}
    assert ours == saved, ours ^ saved

    ids = torch.randint(0, config.vocab_size, (2, 24))
    with Float64():
        logits = model(ids).logits
        assert logits.dtype == torch.float64
        optimizer = torch.optim.AdamW(named.values(), lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"],
                                      weight_decay=ADAMW["weight_decay"])
        trajectory, gradients = [], {}
        for step in range(10):
            optimizer.zero_grad()
            # The model's own loss is in fp32.
            loss = torch.nn.functional.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            if step == 0:
                gradients = {key: p.grad.clone() for key, p in named.items()}
            norm = torch.nn.utils.clip_grad_norm_(named.values(), ADAMW["clip"])
            trajectory.append([loss.item(), norm.item()])
            optimizer.step()
    save_file({"input_ids": ids, "logits": logits.detach().float().contiguous()}, folder / "io.safetensors")
    save_file({k: v for key, g in gradients.items() for k, v in published(key, g).items()}, folder / "grads.safetensors")
    golden = {"transformers": transformers.__version__, "loss": trajectory[0][0], "grad_norm": trajectory[0][1],
              "adamw": ADAMW, "trajectory_loss_gradnorm": trajectory}
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


for module in (modeling_qwen3_next, modeling_qwen3_5, modeling_qwen3_5_moe):
    module.torch_chunk_gated_delta_rule = delta_rule
for key, value in MODELS.items():
    write(key, value)
