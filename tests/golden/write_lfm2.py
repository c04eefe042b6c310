#!/usr/bin/env python3
"""Writes the goldens models/lfm2 and models/lfm2_moe: tiny models of transformers in float64, with the files
described in README.md in this folder. Run by hand; needs torch and transformers 5.

The dense model has biases, a convolution of width 4 and a feed-forward width derived from block_multiple_of.
The mixture is a small version of the published one, with a nonzero expert bias. transformers has one tensor
for all experts; files have a tensor per expert, as published.
"""


import torch
import transformers
from golden_files import HERE, save_golden, separate_experts, ten_steps
from safetensors.torch import load_file

COMMON = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 128, "norm_eps": 1e-5, "layer_types": ["conv", "full_attention", "conv"],
          "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "use_cache": False}
MODELS = {
    "lfm2": transformers.Lfm2Config(**COMMON, intermediate_size=160, block_multiple_of=16, conv_bias=True, conv_L_cache=4),
    "lfm2_moe": transformers.Lfm2MoeConfig(**COMMON, intermediate_size=112, moe_intermediate_size=24, num_experts=8,
                                           num_experts_per_tok=3, num_dense_layers=1, routed_scaling_factor=1.5),
}


def published(name: str, tensor: torch.Tensor) -> dict:
    """Returns the tensors of a parameter in a file."""
    tensor = tensor.detach().float()
    return separate_experts(name, tensor, "w1", "w3", "w2")


def write(name: str, config) -> None:
    torch.manual_seed(17)
    folder = HERE / name
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager").float()
    with torch.no_grad():
        for key, p in model.named_parameters():
            norm = "norm" in key
            scale = 1 if "embed" in key else 0.5  # gates multiply, so larger weights would be too inaccurate in bf16
            p.copy_(torch.randn_like(p) * (0.1 if norm or key.endswith("bias") else scale * p.shape[-1] ** -0.5) + norm)
        for key, buffer in model.named_buffers():
            if key.endswith("expert_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.1)
    model.save_pretrained(folder)
    saved = set(load_file(folder / "model.safetensors"))
    model = model.double()
    named = dict(model.named_parameters())
    ours = {k for key, p in named.items() for k in published(key, p)}
    assert ours == {key for key in saved if not key.endswith("expert_bias")}, ours ^ saved

    ids = torch.randint(0, config.vocab_size, (2, 24))
    logits = model(ids).logits
    save_golden(folder, ids, logits, ten_steps(lambda x: model(x).logits, named, ids), published,
                {"transformers": transformers.__version__})


for key, value in MODELS.items():
    write(key, value)
