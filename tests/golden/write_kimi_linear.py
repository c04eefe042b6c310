#!/usr/bin/env python3
"""Writes the golden models/kimi_linear: a tiny Kimi Linear of transformers in float64, with the files
described in README.md in this folder. Run by hand; needs torch and transformers 5.

It has four layers: a dense one with delta attention, then mixtures with delta, latent and delta attention.
transformers computes the delta rule, its gates and the router in float32 for every model type, so this script
runs its source with float64 in these places. Files have the published names: a tensor per expert, and one for
each of the three convolutions. transformers' own conversion writes them. Only the dense layer is renamed,
because transformers also calls its `mlp` block_sparse_moe.
"""

import importlib
import inspect

import torch
import transformers
from golden_files import HERE, initialise, save_golden, separate_experts, ten_steps
from safetensors.torch import load_file, save_file

CONFIG = transformers.KimiLinearConfig(
    vocab_size=320, hidden_size=64, intermediate_size=112, moe_intermediate_size=24, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=4, num_experts=8, num_experts_per_token=3, num_shared_experts=1,
    num_expert_group=1, topk_group=1, routed_scaling_factor=1.5, kv_lora_rank=16, q_lora_rank=None, qk_nope_head_dim=12,
    qk_rope_head_dim=8, v_head_dim=16, model_max_length=128, rms_norm_eps=0.1,
    linear_attn_config={"head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4, "kda_layers": [1, 2, 4],
                        "full_attn_layers": [3]},
    pad_token_id=None, bos_token_id=None, eos_token_id=None, use_cache=False)


def in_float64():
    """Returns the module of Kimi Linear with all computations in float64."""
    module = importlib.import_module("transformers.models.kimi_linear.modeling_kimi_linear")
    source = inspect.getsource(module).replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    return module


def published(name: str, tensor: torch.Tensor) -> dict:
    """Returns the tensors of a parameter in a file."""
    tensor = tensor.detach().float()
    name = name.replace(".forget_gate.", ".")
    at = name.rpartition(".")[0]
    if at.endswith(".conv1d"):
        return {f"{at.removesuffix('conv1d')}{x}_conv1d.weight": part.contiguous()
                for x, part in zip("qkv", tensor.chunk(3))}
    if ".layers.0." not in name:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    return separate_experts(name, tensor, "w1", "w3", "w2")


def initialise_with_bias(model) -> None:
    initialise(model)
    with torch.no_grad():
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
    initialise_with_bias(model)
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
    save_golden(folder, ids, logits, ten_steps(lambda x: model(x).logits, named, ids), published,
                {"transformers": transformers.__version__})


main()
