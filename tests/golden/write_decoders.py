#!/usr/bin/env python3
"""Writes the goldens of decoders that resemble Llama: tiny models of transformers in float64, with the files
described in README.md in this folder. Run by hand, with names of models or for all; needs torch and
transformers 5.

Each uses the additions of its family, with sizes at which they have an effect: windows shorter than the
sequence, partial rotation of heads, a context longer than the original one of longrope or yarn, factors other
than 1, nonzero expert biases, caps that scores and logits reach, and rotations by kind of layer.
"""

import sys

import torch
import transformers
from golden_files import HERE, save_golden, ten_steps
from safetensors.torch import load_file

COMMON = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "pad_token_id": None,
          "bos_token_id": None, "eos_token_id": None, "use_cache": False}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 16, "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            "long_factor": [1.0, 1.3, 1.9, 3.0, 5.5, 8.0]}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.5}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 8, "beta_fast": 4.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
GEMMA = COMMON | {"num_hidden_layers": 3, "rms_norm_eps": 1e-6, "head_dim": 32, "query_pre_attn_scalar": 60, "sliding_window": 7}
BY_KIND = {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
           "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}
MODELS = {
    "mistral": lambda: transformers.MistralConfig(**COMMON, head_dim=32, sliding_window=7),
    "ministral": lambda: transformers.MinistralConfig(
        **COMMON | {"num_hidden_layers": 3}, head_dim=16, sliding_window=7,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
    "phi3": lambda: transformers.Phi3Config(**COMMON | {"num_hidden_layers": 3}, sliding_window=9, rope_parameters=LONGROPE,
                                            original_max_position_embeddings=16),
    "smollm3": lambda: transformers.SmolLM3Config(**COMMON | {"num_hidden_layers": 4}, no_rope_layers=[1, 1, 0, 1]),
    "olmo2": lambda: transformers.Olmo2Config(**COMMON),
    "glm4": lambda: transformers.Glm4Config(**COMMON, head_dim=16, attention_bias=True),
    "glm4_moe": lambda: transformers.Glm4MoeConfig(
        **COMMON | {"num_hidden_layers": 3}, head_dim=16, attention_bias=True, use_qk_norm=True, moe_intermediate_size=24,
        n_routed_experts=8, num_experts_per_tok=3, n_group=2, topk_group=1, routed_scaling_factor=1.5, num_mtp_layers=0),
    "granite": lambda: transformers.GraniteConfig(**COMMON, **GRANITE, tie_word_embeddings=True),
    "granitemoe": lambda: transformers.GraniteMoeConfig(**COMMON | {"intermediate_size": 24}, **GRANITE,
                                                        num_local_experts=8, num_experts_per_tok=3),
    "granitemoeshared": lambda: transformers.GraniteMoeSharedConfig(
        **COMMON | {"intermediate_size": 24}, **GRANITE, num_local_experts=8, num_experts_per_tok=3,
        shared_intermediate_size=40),
    "gemma2": lambda: transformers.Gemma2Config(**GEMMA, attn_logit_softcapping=0.3, final_logit_softcapping=4.0),
    "gemma3": lambda: transformers.Gemma3TextConfig(**GEMMA, sliding_window_pattern=3, rope_parameters=BY_KIND),
    "ministral3": lambda: transformers.Ministral3Config(**COMMON | {"num_hidden_layers": 3}, head_dim=32, rope_parameters=YARN),
}
# Matrices that are followed by a norm. write() gives them the scale 1 instead of 0.5, because an AdamW step rotates such a
# matrix by the learning rate divided by the scale of the matrix. With the scale 0.5, the rotation was too large: rounding
# only the weights to bf16 moved the gradient norm of the tenth step by 5.6 %. With the scale 1, rounding moves none of the
# ten gradient norms by more than 0.4 %.
NORMED = {"olmo2": ("q_proj.weight", "k_proj.weight", "o_proj.weight", "down_proj.weight")}


def published(name: str, tensor: torch.Tensor, model) -> dict:
    """Returns the tensors of a parameter in a file, as transformers writes them."""
    at, _, last = name.rpartition(".")
    tensor = tensor.detach().float().contiguous()
    if model.config.model_type == "glm4_moe" and tensor.dim() == 3:
        half = tensor.shape[1] // 2
        parts = {"gate_proj": tensor[:, :half], "up_proj": tensor[:, half:]} if last == "gate_up_proj" else {"down_proj": tensor}
        return {f"{at}.{e}.{w}.weight": one.contiguous() for w, part in parts.items() for e, one in enumerate(part)}
    if not model.config.model_type.startswith("granitemoe"):
        return {name: tensor}
    for ours, theirs in (("experts.gate_up_proj", "input_linear.weight"), ("experts.down_proj", "output_linear.weight"),
                         ("block_sparse_moe.router.weight", "block_sparse_moe.router.layer.weight")):
        name = name.replace(ours, theirs)
    return {name: tensor}


def write(name: str, config) -> None:
    torch.manual_seed(17)
    folder = HERE / name
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    if hasattr(config, "num_local_experts"):
        model.set_experts_implementation("eager")
    with torch.no_grad():
        for key, p in model.named_parameters():
            norm = "norm" in key
            centre = norm and not config.model_type.startswith("gemma")  # Gemma stores norm weights minus one
            # As in write_lfm2.py, larger weights would make bf16 results too inaccurate. If norms follow, the gradients
            # of key biases nearly cancel. Larger queries enlarge these gradients.
            of_queries = 0.7 if getattr(config, "use_qk_norm", False) else 0.5
            scale = 1 if "embed" in key or key.endswith(NORMED.get(name, ())) else of_queries if "q_proj" in key else 0.5
            p.copy_(torch.randn_like(p) * (0.1 if norm or key.endswith("bias") else scale * p.shape[-1] ** -0.5) + centre)
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.1)
    model.save_pretrained(folder)
    saved = set(load_file(folder / "model.safetensors"))
    model = model.double()
    named = dict(model.named_parameters())
    ours = {k for key, p in named.items() for k in published(key, p, model)}
    assert ours == {key for key in saved if not key.endswith("e_score_correction_bias")}, ours ^ saved

    ids = torch.randint(0, config.vocab_size, (2, 24))
    logits = model(ids).logits
    save_golden(folder, ids, logits, ten_steps(lambda x: model(x).logits, named, ids),
                lambda key, values: published(key, values, model), {"transformers": transformers.__version__})


for key in sys.argv[1:] or MODELS:
    write(key, MODELS[key]())
