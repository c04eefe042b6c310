#!/usr/bin/env python3
"""Writes the golden models/qwen3_vl_moe: a tiny mixture of Qwen3-VL of transformers in float64, with the
files described in README.md in this folder. Run by hand; needs torch and transformers 5.

The folder has the published layout: a text_config and a vision_config, names below model.language_model, all
experts of a layer in two tensors stored by columns, and the tensors of the vision part. transformers reads
this layout and writes experts by rows. Gradients have the names that Primus uses for the text part, with a
tensor per expert. transformers computes the router in float32, so this script runs its source with float64 in
that place.
"""

import importlib
import inspect

import torch
import transformers
from golden_files import HERE, save_golden, separate_experts, ten_steps
from safetensors.torch import load_file, save_file

TEXT = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 112, "moe_intermediate_size": 24,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8,
        "num_experts_per_tok": 3, "mlp_only_layers": [1], "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "use_cache": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [4, 2, 2],
                            "mrope_interleaved": True}}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64,
          "patch_size": 2, "temporal_patch_size": 1, "spatial_merge_size": 1, "num_position_embeddings": 4,
          "deepstack_visual_indexes": []}


def in_float64():
    """Returns the module of Qwen3-VL's mixtures with all computations in float64."""
    module = importlib.import_module("transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe")
    source = inspect.getsource(module).replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    exec(compile(source.replace("dtype=torch.float,", "dtype=torch.float64,"), module.__file__, "exec"),
         module.__dict__)
    return module


def published(name: str, tensor: torch.Tensor) -> dict:
    """Returns the tensors of a parameter in a file of only the text part."""
    name = name.replace("model.language_model.", "model.")
    return separate_experts(name, tensor.detach().float(), "gate_proj", "up_proj", "down_proj")


def main() -> None:
    torch.manual_seed(17)
    folder = HERE / "qwen3_vl_moe"
    module = in_float64()
    config = transformers.Qwen3VLMoeConfig(text_config=TEXT, vision_config=VISION, tie_word_embeddings=False)
    config._attn_implementation = "eager"
    config.text_config._experts_implementation = "eager"
    model = module.Qwen3VLMoeForConditionalGeneration(config).float()
    with torch.no_grad():
        for key, p in model.named_parameters():
            norm = "norm" in key
            # As in write_decoders.py, larger matrices would make bf16 results too inaccurate.
            scale = 8 if "embed_tokens" in key else 0.5
            p.copy_(torch.randn_like(p) * (0.1 if norm else scale * p.shape[-1] ** -0.5) + norm)
    model.save_pretrained(folder)
    saved = {key: tensor.transpose(1, 2).contiguous() if ".experts." in key else tensor
             for key, tensor in load_file(folder / "model.safetensors").items()}
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})
    read = module.Qwen3VLMoeForConditionalGeneration.from_pretrained(folder)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), read.parameters(), strict=True))
    model = model.double()
    trained = {key: p for key, p in model.named_parameters() if ".visual." not in key}
    ids = torch.randint(0, TEXT["vocab_size"], (2, 24))
    logits = model(ids).logits
    assert logits.dtype == torch.float64
    save_golden(folder, ids, logits, ten_steps(lambda x: model(x).logits, trained, ids), published,
                {"transformers": transformers.__version__})


main()
