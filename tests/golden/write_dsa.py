#!/usr/bin/env python3
"""Writes the goldens models/deepseek_v32 and models/glm_moe_dsa, or only the named ones: tiny models of
transformers in float64, with the files described in README.md in this folder. Run by hand; needs torch and
transformers 5.

Lists of selected tokens are shorter than the sequences. The script searches for a seed with which the last
selected score differs clearly from the first one that is not selected, so that rounding cannot change a
selection. Indexers have no gradients and are not trained.
"""

import sys

import torch
import transformers
from golden_files import HERE, save_golden, separate_experts, ten_steps
from safetensors.torch import load_file

COMMON = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
          "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "moe_intermediate_size": 24,
          "first_k_dense_replace": 1, "max_position_embeddings": 128, "index_head_dim": 16, "index_n_heads": 8,
          "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "use_cache": False}
MODELS = {
    "deepseek_v32": transformers.DeepseekV32Config(**COMMON, v_head_dim=12, n_group=4, topk_group=2, index_topk=16),
    "glm_moe_dsa": transformers.GlmMoeDsaConfig(**COMMON, v_head_dim=20, n_group=1, topk_group=1, index_topk=21),
}
TOKENS, SEEDS, TRIALS = (2, 24), 200, 12


def published(name: str, tensor: torch.Tensor) -> dict:
    """Returns the tensors of a parameter in a file."""
    tensor = tensor.detach().float()
    return separate_experts(name, tensor, "gate_proj", "up_proj", "down_proj")


class Margins:
    """The distance of the last selected score from the first one not selected, as a share of the largest."""

    def __init__(self, model, topk: int):
        self.least, self.topk = 1.0, topk
        for layer in model.model.layers:
            self.watch(layer.self_attn.indexer)

    def watch(self, indexer) -> None:
        forward = indexer.forward

        def watched(hidden, q, positions, mask, *more, **named):
            real = torch.Tensor.topk

            def topk(scores, k, **how):
                if scores.shape[-1] > k and scores.dim() == 3:
                    best = scores.sort(dim=-1, descending=True).values
                    for row in best.flatten(0, 1):
                        if torch.isfinite(row[k]) and row[k] > -1e30:
                            seen = row[row > -1e30]
                            self.least = min(self.least, float((row[k - 1] - row[k]) / seen.abs().max()))
                return real(scores, k, **how)

            torch.Tensor.topk = topk
            try:
                return forward(hidden, q, positions, mask, *more, **named)
            finally:
                torch.Tensor.topk = real

        indexer.forward = watched


def make(config, seed: int):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager").float()
    with torch.no_grad():
        for key, p in model.named_parameters():
            norm = "norm" in key and not key.endswith("bias")
            scale = 1 if "embed" in key else 0.5
            small = norm or key.endswith("bias")
            p.copy_(torch.randn_like(p) * (0.1 if small else scale * p.shape[-1] ** -0.5) + norm)
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.1)
    ids = torch.randint(0, config.vocab_size, TOKENS)
    return model, ids


def first_margin(config, seed: int) -> float:
    model, ids = make(config, seed)
    model = model.double()
    margins = Margins(model, config.index_topk)
    with torch.no_grad():
        model(ids)
    return margins.least


def train(config, model, ids):
    """Runs ten steps. Returns the losses and norms, the first gradients, and the smallest margin."""
    named = dict(model.named_parameters())
    margins = Margins(model, config.index_topk)
    trained = {key: p for key, p in named.items() if ".indexer." not in key}
    outcome = ten_steps(lambda x: model(x).logits, trained, ids)
    assert all((p.grad is None) == (key not in trained) for key, p in named.items())
    return outcome, margins.least


def best_seed(config) -> int:
    likely = sorted(range(SEEDS), key=lambda seed: first_margin(config, seed))[-TRIALS:]

    def margin(seed: int) -> float:
        model, ids = make(config, seed)
        return train(config, model.double(), ids)[1]
    return max(likely, key=margin)


def write(name: str, config) -> None:
    folder = HERE / name
    model, ids = make(config, best_seed(config))
    model.save_pretrained(folder)
    saved = set(load_file(folder / "model.safetensors"))
    model = model.double()
    ours = {k for key, p in model.named_parameters() for k in published(key, p)}
    assert ours == {key for key in saved if not key.endswith("e_score_correction_bias")}, ours ^ saved
    with torch.no_grad():
        logits = model(ids).logits
    outcome, margin = train(config, model, ids)
    print(name, "margin", margin)
    save_golden(folder, ids, logits, outcome, published, {"transformers": transformers.__version__})


for chosen in sys.argv[1:] or MODELS:
    write(chosen, MODELS[chosen])
