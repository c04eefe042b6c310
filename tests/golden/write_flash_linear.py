#!/usr/bin/env python3
"""Writes the goldens of flash-linear-attention's models in float64, with the files described in README.md in
this folder: models/gated_deltanet (grouped-query attention in one layer), models/gated_deltanet_latent
(latent attention in one layer, as in the hybrids of AMD Primus, and a tied head) and models/kda (delta
attention only). Run by hand; needs torch, transformers 5, einops and flash-linear-attention with fla-core.

The modules, their wiring and the names of parameters are fla's. Its kernels need a GPU and compute in
float32, so each is replaced by its definition in PyTorch, token by token. fla's models have no latent
attention: its layer replaces a delta network here, and the norms of latents use the model's epsilon, as in
AMD Primus.
"""

import fla
import torch
import torch.nn.functional as F
import transformers
from fla.layers import attn, gated_deltanet, kda, mla
from fla.models import GatedDeltaNetConfig, GatedDeltaNetForCausalLM, KDAConfig, KDAForCausalLM
from fla.modules import FusedRMSNormGated, RMSNorm, RotaryEmbedding, ShortConvolution
from fla.modules import mlp
from golden_files import HERE, initialise, save_golden, ten_steps

COMMON = {"hidden_size": 64, "intermediate_size": 112, "vocab_size": 320, "conv_size": 4, "norm_eps": 0.1,
          "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
          "fuse_norm": False, "fuse_swiglu": False, "fuse_cross_entropy": False, "use_cache": False}
LATENT = {"layers": [0], "num_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12,
          "qk_rope_head_dim": 8, "v_head_dim": 16, "rope_theta": 5000.0}


def convolution(x, weight, *_, **__):
    """Applies a causal convolution to each channel, then SiLU. x: [batch, tokens, channels]."""
    width = weight.shape[-1]
    padded = F.pad(x.transpose(1, 2), (width - 1, 0))
    return F.silu(F.conv1d(padded, weight.view(-1, 1, width), groups=x.shape[-1])).transpose(1, 2), None


def delta_rule(q, k, v, g, beta, A_log, dt_bias, **_):
    """Computes S = exp(g) S, S += k beta (v - S^T k)^T and out = S^T q / sqrt(K). g: per head, or per key channel."""
    heads = v.shape[2]
    by_channel = g.dim() == 4
    g = g + (dt_bias.view(heads, -1) if by_channel else dt_bias)
    g = -A_log.exp().view(heads, *[1] * by_channel) * F.softplus(g)
    beta = beta.sigmoid()
    unit = [x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k)]
    q, k = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in unit)
    state = q.new_zeros(*v.shape[:1], heads, q.shape[-1], v.shape[-1])
    out = []
    for t in range(q.shape[1]):
        fade = g[:, t].exp()[..., None] if by_channel else g[:, t].exp()[..., None, None]
        state = state * fade
        read = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * (v[:, t] - read))
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * q.shape[-1] ** -0.5)
    return torch.stack(out, dim=1), None


def rms(x, weight, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def attention(q, k, v, **_):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def rotated(self, q, k, **_):
    """Rotates pairs that are half a head apart."""
    half = self.dim // 2
    frequencies = self.base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(q.shape[1], dtype=torch.float64)[:, None] * frequencies
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]

    def turn(x):
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return turn(q), turn(k)


def by_definition() -> None:
    """Replaces fla's kernels, and functions that only kernels implement."""
    gated_deltanet.causal_conv1d = convolution
    gated_deltanet.chunk_gated_delta_rule = kda.chunk_kda = delta_rule
    attn.flash_attn_func = mla.flash_attn_func = attention
    mlp.swiglu = lambda x, y: F.silu(x) * y
    ShortConvolution.forward = lambda self, x, **_: convolution(x, self.weight)
    RMSNorm.forward = lambda self, x: rms(x, self.weight, self.eps)
    RotaryEmbedding.forward = rotated
    gates = {"swish": F.silu, "silu": F.silu, "sigmoid": torch.sigmoid}
    FusedRMSNormGated.forward = lambda self, x, gate: rms(x, self.weight, self.eps) * gates[self.activation](gate)


def write(name: str, model) -> None:
    folder = HERE / name
    initialise(model)
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embeddings.weight
    model.save_pretrained(folder)
    model = model.double().train()
    ids = torch.randint(0, model.config.vocab_size, (2, 24))
    logits = model(ids, use_cache=False).logits
    assert logits.dtype == torch.float64
    outcome = ten_steps(lambda x: model(x, use_cache=False).logits, dict(model.named_parameters()), ids)
    save_golden(folder, ids, logits, outcome, lambda key, tensor: {key: tensor.contiguous()},
                {"flash-linear-attention": fla.__version__, "transformers": transformers.__version__})


def main() -> None:
    by_definition()
    torch.manual_seed(17)
    write("gated_deltanet", GatedDeltaNetForCausalLM(GatedDeltaNetConfig(
        **COMMON, num_hidden_layers=3, num_heads=2, num_v_heads=4, head_dim=16, expand_v=1.0,
        attn={"layers": [1], "num_heads": 4, "num_kv_heads": 2, "rope_theta": 5000.0})))
    write("kda", KDAForCausalLM(KDAConfig(
        **COMMON, num_hidden_layers=2, num_heads=2, num_v_heads=4, head_dim=8, expand_v=2.0,
        tie_word_embeddings=True)))

    model = GatedDeltaNetForCausalLM(GatedDeltaNetConfig(
        **COMMON, num_hidden_layers=2, num_heads=2, num_v_heads=4, head_dim=16, expand_v=1.0,
        tie_word_embeddings=True))
    sizes = {key: value for key, value in LATENT.items() if key != "layers"}
    latent = mla.MultiheadLatentAttention(hidden_size=64, qk_head_dim=None, layer_idx=0, **sizes)
    latent.q_proj[1].eps = latent.kv_proj[1].eps = COMMON["norm_eps"]
    model.model.layers[0].attn = latent
    model.config.__dict__["attn"] = {**LATENT, "num_kv_heads": 4, "qkv_bias": False, "window_size": None}
    write("gated_deltanet_latent", model)


main()
