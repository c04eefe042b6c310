#!/usr/bin/env python3
"""Writes the golden models/kimi_k3: a tiny Kimi K3 (text backbone) in float64, with the files described in
README.md in this folder. Run by hand with the path of a checkout of github.com/AMD-AGI/Primus; needs torch.

No published implementation runs without a GPU. The eager references of AMD Primus compute the parts that only
Kimi K3 has: the delta rule step by step, its gate and norm (kda_kernels/_eager), the mixture of attention
residuals (attn_res_kernels/_eager) and SiTU. This script computes the rest as the modules of AMD Primus do:
latent attention without positions and with an output gate, the latent mixture of experts, and the order of a
layer (KimiK3Layer.forward). All of it is in float64. Names and config.json follow the modules' comments about
moonshotai/Kimi-K3, whose files were not available.
"""

import importlib.util
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from golden_files import HERE, save_golden, ten_steps
from safetensors.torch import save_file

UPSTREAM = pathlib.Path(sys.argv[1]) / "primus/backends/megatron/core/transformer/kimi_k3"
CONFIG = {
    "architectures": ["KimiK3ForCausalLM"], "model_type": "kimi_k3", "vocab_size": 320, "hidden_size": 64,
    "intermediate_size": 112, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 128, "rms_norm_eps": 0.1, "tie_word_embeddings": False, "initializer_range": 0.02,
    "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "mla_use_nope": True, "mla_use_output_gate": True,
    "linear_attn_config": {"head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
                           "use_full_rank_gate": True, "kda_layers": [1, 2, 4], "full_attn_layers": [3, 5]},
    "attn_res_block_size": 2, "routed_expert_hidden_size": 32, "latent_moe_use_norm": True,
    "num_experts": 8, "num_experts_per_token": 3, "num_shared_experts": 2, "moe_intermediate_size": 24,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_renormalize": True, "routed_scaling_factor": 1.5,
    "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1, "use_cache": False,
    "torch_dtype": "float32"}
C, L = CONFIG, CONFIG["linear_attn_config"]
EPS, LATENT_EPS = C["rms_norm_eps"], 1e-6


def load(name: str, path: str):
    spec = importlib.util.spec_from_file_location(name, UPSTREAM / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kda = load("kda", "kda_kernels/_eager/reference.py")
residuals = load("residuals", "attn_res_kernels/_eager/reference.py")
situ_activation = load("situ_activation", "situ_activation.py")


# The matrices that write into the residual stream. matrix() doubles their scale, so that the gradients of res_proj are
# accurate enough in bf16. Without the doubling, rounding the results of products, norms and mixtures moved these
# gradients by 0.02 to 0.05; everything else, including the delta rule, was float64. With the doubling, rounding moves no
# gradient by more than 0.03. The cause: the gradient of a mixture's score depends on how the mixed candidates differ
# along the gradient of the mixture. The norm after the mixture makes this gradient almost orthogonal to the sum of the
# candidates. If one candidate is much smaller than another, the score's gradient is mostly the rounding error of the
# larger candidate. Norms of small values (a head's first token, a restarted stream) also amplify rounding errors. The
# epsilon of the norms and the scales of all weights keep those errors within the accuracy of fp32 and bf16.
INTO_STREAM = ("o_proj", "mlp.down_proj", "shared_experts.down_proj", "routed_expert_up_proj")


def parameters() -> dict:
    torch.manual_seed(17)
    h, heads, wide = C["hidden_size"], C["num_attention_heads"], L["num_heads"] * L["head_dim"]
    named = {}

    def matrix(name, *shape, scale=0.3):
        scale *= 2 if name.endswith(INTO_STREAM) else 1
        named[name + ".weight"] = torch.randn(*shape) * scale * shape[-1] ** -0.5

    def norm(name, width):
        named[name + ".weight"] = 1 + 0.1 * torch.randn(width)

    def feed_forward(at, width):
        matrix(f"{at}.gate_proj", width, h)
        matrix(f"{at}.up_proj", width, h)
        matrix(f"{at}.down_proj", h, width)

    matrix("model.embed_tokens", C["vocab_size"], h, scale=8)
    for i in range(C["num_hidden_layers"]):
        at = f"model.layers.{i}"
        for branch in ["self_attention"] * (i > 0) + ["mlp"]:
            norm(f"{at}.{branch}_res_norm", h)
            matrix(f"{at}.{branch}_res_proj", 1, h, scale=1)
        norm(f"{at}.input_layernorm", h)
        norm(f"{at}.post_attention_layernorm", h)
        attn = f"{at}.self_attn"
        if i + 1 in L["kda_layers"]:
            for x in "qkvg":
                matrix(f"{attn}.{x}_proj", wide, h, scale=1)
            for x in "qkv":
                named[f"{attn}.{x}_conv1d.weight"] = torch.randn(wide, 1, L["short_conv_kernel_size"]) * 0.5
            matrix(f"{attn}.f_a_proj", L["head_dim"], h)
            matrix(f"{attn}.f_b_proj", wide, L["head_dim"])
            matrix(f"{attn}.b_proj", L["num_heads"], h)
            named[f"{attn}.A_log"] = torch.rand(L["num_heads"]).add(0.5).log()
            named[f"{attn}.dt_bias"] = torch.randn(wide) * 0.5 - 2
            norm(f"{attn}.o_norm", L["head_dim"])
            matrix(f"{attn}.o_proj", h, wide)
        else:
            q = C["qk_nope_head_dim"] + C["qk_rope_head_dim"]
            matrix(f"{attn}.q_a_proj", C["q_lora_rank"], h)
            norm(f"{attn}.q_a_layernorm", C["q_lora_rank"])
            matrix(f"{attn}.q_b_proj", heads * q, C["q_lora_rank"])
            matrix(f"{attn}.kv_a_proj_with_mqa", C["kv_lora_rank"] + C["qk_rope_head_dim"], h)
            norm(f"{attn}.kv_a_layernorm", C["kv_lora_rank"])
            matrix(f"{attn}.kv_b_proj", heads * (C["qk_nope_head_dim"] + C["v_head_dim"]), C["kv_lora_rank"], scale=1)
            matrix(f"{attn}.g_proj", heads * C["v_head_dim"], h)
            matrix(f"{attn}.o_proj", h, heads * C["v_head_dim"])
        if i < C["first_k_dense_replace"]:
            feed_forward(f"{at}.mlp", C["intermediate_size"])
            continue
        moe, latent, width = f"{at}.block_sparse_moe", C["routed_expert_hidden_size"], C["moe_intermediate_size"]
        matrix(f"{moe}.gate", C["num_experts"], h)
        named[f"{moe}.gate.e_score_correction_bias"] = torch.randn(C["num_experts"]) * 0.1
        matrix(f"{moe}.routed_expert_down_proj", latent, h)
        norm(f"{moe}.routed_expert_norm", latent)
        matrix(f"{moe}.routed_expert_up_proj", h, latent)
        for e in range(C["num_experts"]):
            matrix(f"{moe}.experts.{e}.w1", width, latent, scale=1)
            matrix(f"{moe}.experts.{e}.w3", width, latent, scale=1)
            matrix(f"{moe}.experts.{e}.w2", latent, width, scale=1)
        feed_forward(f"{moe}.shared_experts", C["num_shared_experts"] * width)
    norm("model.output_attn_res_norm", h)
    matrix("model.output_attn_res_proj", 1, h, scale=1)
    norm("model.norm", h)
    matrix("lm_head", C["vocab_size"], h)
    return named


class Model:
    def __init__(self, named: dict):
        self.p = named

    def linear(self, x, name):
        return F.linear(x, self.p[name + ".weight"])

    def norm(self, x, name, eps=EPS):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.p[name + ".weight"]

    def mix(self, stream, blocks, name):
        return residuals.eager_attn_res_mix(stream, blocks, self.p[f"{name}_res_norm.weight"],
                                            self.p[f"{name}_res_proj.weight"], EPS)

    def situ(self, gate, up):
        return situ_activation.situ_pre_mul(gate, up, beta=C["activation_situ_beta"],
                                            linear_beta=C["activation_situ_linear_beta"])

    def feed_forward(self, x, at):
        return self.linear(self.situ(self.linear(x, f"{at}.gate_proj"), self.linear(x, f"{at}.up_proj")),
                           f"{at}.down_proj")

    def delta_attention(self, x, at):
        b, s, _ = x.shape
        heads, dim = L["num_heads"], L["head_dim"]

        def convolved(name):
            y = self.linear(x, f"{at}.{name}_proj").transpose(1, 2)
            width = L["short_conv_kernel_size"]
            y = F.conv1d(y, self.p[f"{at}.{name}_conv1d.weight"], padding=width - 1, groups=y.shape[1])[..., :s]
            return F.silu(y.transpose(1, 2)).reshape(b, s, heads, dim)

        q, k, v = kda.kda_l2norm(convolved("q")), kda.kda_l2norm(convolved("k")), convolved("v")
        z = self.linear(self.linear(x, f"{at}.f_a_proj"), f"{at}.f_b_proj").reshape(b, s, heads, dim)
        g = kda.kda_gate(z, self.p[f"{at}.A_log"], self.p[f"{at}.dt_bias"], L["gate_lower_bound"])
        beta = torch.sigmoid(self.linear(x, f"{at}.b_proj"))
        y, _ = kda.eager_recurrent_kda(q, k, v, g, beta)
        gate = self.linear(x, f"{at}.g_proj").reshape(b, s, heads, dim)
        y = self.norm(y, f"{at}.o_norm") * torch.sigmoid(gate)
        return self.linear(y.reshape(b, s, heads * dim), f"{at}.o_proj")

    def latent_attention(self, x, at):
        b, s, _ = x.shape
        heads, nope, rope, value = (C["num_attention_heads"], C["qk_nope_head_dim"], C["qk_rope_head_dim"],
                                    C["v_head_dim"])
        q = self.norm(self.linear(x, f"{at}.q_a_proj"), f"{at}.q_a_layernorm", LATENT_EPS)
        q = self.linear(q, f"{at}.q_b_proj").reshape(b, s, heads, nope + rope)
        latent, shared = self.linear(x, f"{at}.kv_a_proj_with_mqa").split([C["kv_lora_rank"], rope], -1)
        kv = self.linear(self.norm(latent, f"{at}.kv_a_layernorm", LATENT_EPS), f"{at}.kv_b_proj")
        k, v = kv.reshape(b, s, heads, nope + value).split([nope, value], -1)
        k = torch.cat([k, shared.reshape(b, s, 1, rope).expand(-1, -1, heads, -1)], -1)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        scores = q @ k.transpose(-1, -2) * (nope + rope) ** -0.5
        scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, heads * value)
        return self.linear(y * torch.sigmoid(self.linear(x, f"{at}.g_proj")), f"{at}.o_proj")

    def experts(self, x, at):
        flat = x.flatten(0, 1)
        scores = torch.sigmoid(self.linear(flat, f"{at}.gate"))
        chosen = (scores + self.p[f"{at}.gate.e_score_correction_bias"]).topk(C["num_experts_per_token"], -1).indices
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * C["routed_scaling_factor"]
        low = self.linear(flat, f"{at}.routed_expert_down_proj")
        y = torch.zeros_like(low)
        for e in range(C["num_experts"]):
            share = (weights * (chosen == e)).sum(-1, keepdim=True)
            one = f"{at}.experts.{e}"
            y = y + share * self.linear(self.situ(self.linear(low, f"{one}.w1"), self.linear(low, f"{one}.w3")),
                                        f"{one}.w2")
        y = self.linear(self.norm(y, f"{at}.routed_expert_norm"), f"{at}.routed_expert_up_proj")
        return y.view_as(x) + self.feed_forward(x, f"{at}.shared_experts")

    def __call__(self, ids):
        stream = self.p["model.embed_tokens.weight"][ids]
        blocks = stream.new_zeros(*stream.shape[:-1], 0, stream.shape[-1])
        for i in range(C["num_hidden_layers"]):
            at = f"model.layers.{i}"
            x = self.mix(stream, blocks, f"{at}.self_attention") if i > 0 else stream
            restarts = i % C["attn_res_block_size"] == 0
            if restarts:
                blocks = torch.cat([blocks, stream.unsqueeze(-2)], -2)
            attend = self.delta_attention if i + 1 in L["kda_layers"] else self.latent_attention
            y = attend(self.norm(x, f"{at}.input_layernorm"), f"{at}.self_attn")
            stream = y if restarts else stream + y
            x = self.norm(self.mix(stream, blocks, f"{at}.mlp"), f"{at}.post_attention_layernorm")
            dense = i < C["first_k_dense_replace"]
            stream = stream + (self.feed_forward(x, f"{at}.mlp") if dense
                               else self.experts(x, f"{at}.block_sparse_moe"))
        return self.linear(self.norm(self.mix(stream, blocks, "model.output_attn"), "model.norm"), "lm_head")


def main() -> None:
    folder = HERE / "kimi_k3"
    folder.mkdir(parents=True, exist_ok=True)
    named = parameters()
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    named = {k: v.double().requires_grad_(not k.endswith("e_score_correction_bias")) for k, v in named.items()}
    trained = {k: v for k, v in named.items() if v.requires_grad}
    model = Model(named)
    ids = torch.randint(0, C["vocab_size"], (2, 24))
    save_golden(folder, ids, model(ids), ten_steps(model, trained, ids), lambda name, values: {name: values.contiguous()},
                {"torch": torch.__version__})


main()
