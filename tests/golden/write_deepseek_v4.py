#!/usr/bin/env python3
"""Writes the golden models/deepseek_v4: a tiny model of transformers in float64, with the files described in
README.md in this folder. Run by hand; needs torch and transformers 5.24.

Its four layers have all three kinds of attention, and the first layer routes by a table. The sequence is
longer than the window and than the indexer's selection, so that every choice has an effect. YaRN scales the
frequencies of compressed layers, and some gates are clamped. The indexer has no gradient, because its output
is a choice. Files have the published names, as transformers saves them.
"""


import torch
import transformers
from golden_files import HERE, save_golden, separate_experts, ten_steps
from safetensors.torch import load_file

CONFIG = transformers.DeepseekV4Config(
    vocab_size=320, hidden_size=48, moe_intermediate_size=24, num_hidden_layers=4, num_attention_heads=4, head_dim=24,
    q_lora_rank=32, num_experts_per_tok=2, n_routed_experts=8, routed_scaling_factor=1.5, max_position_embeddings=128,
    layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                 "compressed_sparse_attention"],
    compress_rates={"compressed_sparse_attention": 2, "heavily_compressed_attention": 6},
    mlp_layer_types=["hash_moe", "moe", "moe", "moe"], hc_mult=4, hc_sinkhorn_iters=20, swiglu_limit=1.0,
    sliding_window=5, o_groups=2, o_lora_rank=16, index_n_heads=8, index_head_dim=16, index_topk=3,
    partial_rotary_factor=8 / 24, rope_theta=10000.0, compress_rope_theta=160000.0, num_nextn_predict_layers=0,
    rope_parameters={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32,
                     "beta_slow": 1},
    pad_token_id=None, bos_token_id=None, eos_token_id=None, use_cache=False)


def published(name: str, tensor: torch.Tensor) -> dict:
    """Returns the tensors of a parameter in a file."""
    tensor = tensor.detach().float()
    names = {".self_attn.compressor.indexer.scorer.weights_proj": ".attn.indexer.weights_proj",
             ".self_attn.compressor.indexer.q_b_proj": ".attn.indexer.wq_b",
             ".self_attn.compressor.indexer.": ".attn.indexer.compressor.", ".self_attn.": ".attn.", ".mlp.": ".ffn.",
             "lm_head": "head", ".input_layernorm": ".attn_norm", ".post_attention_layernorm": ".ffn_norm",
             ".attn_hc.": ".hc_attn_", ".ffn_hc.": ".hc_ffn_", ".sinks": ".attn_sink", ".kv_norm": ".norm",
             ".position_bias": ".ape", ".q_a_proj": ".wq_a", ".q_b_proj": ".wq_b", ".q_a_norm": ".q_norm",
             ".kv_proj": ".wkv", "compressor.gate_proj": "compressor.wgate", ".o_a_proj": ".wo_a", ".o_b_proj": ".wo_b",
             ".shared_experts.gate_proj": ".shared_experts.w1", ".shared_experts.down_proj": ".shared_experts.w2",
             ".shared_experts.up_proj": ".shared_experts.w3"}
    for theirs, ours in names.items():
        name = name.replace(theirs, ours)
    return separate_experts(name, tensor, "w1", "w3", "w2")


def main() -> None:
    torch.manual_seed(17)
    folder = HERE / "deepseek_v4"
    model = transformers.AutoModelForCausalLM.from_config(
        CONFIG, attn_implementation="eager", experts_implementation="eager").float()
    with torch.no_grad():
        for key, p in model.named_parameters():
            norm = "norm" in key
            small = norm or key.endswith(("base", "position_bias", "sinks"))
            scale = 0.1 if small else 1 if "embed" in key else 0.5 * p.shape[-1] ** -0.5  # small where results are multiplied, as in write_lfm2.py
            p.copy_(torch.randn_like(p) * scale + norm)
            if key.endswith("scale"):
                p.copy_(1 + 0.1 * torch.randn_like(p))
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.1)
            if key.endswith("tid2eid"):
                buffer.copy_(torch.stack([torch.randperm(CONFIG.n_routed_experts)[:buffer.shape[1]] for _ in buffer]))
    model.save_pretrained(folder)
    saved = set(load_file(folder / "model.safetensors"))
    # Casts to fp32 in the model's code become casts to float64.
    torch.Tensor.float = torch.Tensor.double
    functional_softmax = torch.Tensor.softmax
    torch.Tensor.softmax = lambda self, dim, dtype=None: functional_softmax(self, dim)
    model = model.double()
    named = dict(model.named_parameters())
    ours = {k for key, p in named.items() for k in published(key, p)}
    buffers = ("gate.bias", "tid2eid")
    assert ours == {key for key in saved if not key.endswith(buffers)}, ours ^ saved

    ids = torch.randint(0, CONFIG.vocab_size, (2, 24))
    logits = model(ids).logits
    assert logits.dtype == torch.float64
    trained = {key: p for key, p in named.items() if ".indexer." not in key}
    outcome = ten_steps(lambda x: model(x).logits, trained, ids)
    assert all((p.grad is None) == (key not in trained) for key, p in named.items())
    save_golden(folder, ids, logits, outcome, published, {"transformers": transformers.__version__})


main()
