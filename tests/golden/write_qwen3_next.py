#!/usr/bin/env python3
"""Writes the goldens models/qwen3_next, models/qwen3_5_moe and models/qwen3_5: tiny models of transformers in
float64, with the files described in README.md in this folder. Run by hand; needs torch and transformers 5.

transformers computes its gated delta rule in fp32 for every model type; this script uses the model's type.
transformers has one tensor for all experts; files have a tensor per expert, as transformers saves them. The
epsilons of norms are large: at the first tokens, states are small, and their norms would amplify rounding
errors over the ten steps.
"""


import torch
import transformers
from golden_files import HERE, save_golden, separate_experts, ten_steps
from safetensors.torch import load_file
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next

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
    """Computes the gated delta rule token by token, like torch_recurrent_gated_delta_rule with normalised q and k."""
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
    """Keeps the model from rounding intermediate values to fp32."""

    def __enter__(self):
        self.float, self.softmax, self.to = torch.Tensor.float, torch.nn.functional.softmax, torch.Tensor.to
        torch.Tensor.float = lambda x, *_, **__: x
        torch.nn.functional.softmax = lambda x, *a, dtype=None, **k: self.softmax(x, *a, **k)
        torch.Tensor.to = lambda x, *a, **k: x if torch.float32 in (*a, k.get("dtype")) and x.dtype == torch.float64 else self.to(x, *a, **k)

    def __exit__(self, *_):
        torch.Tensor.float, torch.nn.functional.softmax, torch.Tensor.to = self.float, self.softmax, self.to


def published(name: str, tensor: torch.Tensor) -> dict:
    """Returns the tensors of a parameter in a file."""
    tensor = torch.Tensor.detach(tensor).to(torch.float32)
    return separate_experts(name, tensor, "gate_proj", "up_proj", "down_proj")


def write(name: str, config) -> None:
    torch.manual_seed(18)  # with 17, the gradient of one norm's eight weights nearly cancels, and bf16 rounding is 6% of it
    folder = HERE / name
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager").float()
    with torch.no_grad():
        for key, p in model.named_parameters():
            one = key.endswith("linear_attn.norm.weight")  # other norms store weights minus one
            if key.endswith("A_log"):
                p.copy_(torch.log(torch.rand_like(p) + 0.1))  # states decay slowly
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
        outcome = ten_steps(lambda x: model(x).logits, named, ids)
    save_golden(folder, ids, logits, outcome, published, {"transformers": transformers.__version__})


for module in (modeling_qwen3_next, modeling_qwen3_5, modeling_qwen3_5_moe):
    module.torch_chunk_gated_delta_rule = delta_rule
for key, value in MODELS.items():
    write(key, value)
