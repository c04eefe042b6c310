#!/usr/bin/env python3
"""Writes NAME/golden.json and NAME/golden.safetensors for the steps below, and model.safetensors for those
that do not use the weights of another: one step of two microbatches by Megatron-LM's GPTModel, with the
auxiliary losses of routers and with multi-token prediction. Run by hand; needs torch and `pip install
--no-deps megatron-core==0.16.1`.

golden.json has Megatron's version, the settings under the names of its command line, the starts of each
microbatch's documents if they are packed, and the results, which are means over microbatches: the loss, that
of each depth of multi-token prediction, and those of each layer's router without their coefficients. If the
expert bias is updated, it also has the number of tokens of each expert. golden.safetensors has tokens, labels
and loss_mask [microbatches, sequences, positions], and the gradients under the names of the weights in
Hugging Face's layout. The expert biases in it are those after the step.

Megatron provides the model, its losses and their scales (schedules.forward_step_calc_loss), and the update of
the bias. This script provides the parts of a training script: data, the sum of the masked loss, and attention
itself, which in Megatron needs Transformer Engine or random states of CUDA.
"""

import json
import pathlib

import megatron_on_cpu
import torch
from megatron.core.distributed.finalize_model_grads import _update_router_expert_bias
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel.schedules import forward_step_calc_loss
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
MICROBATCHES, VOCAB = 2, 32

COMMON = {
    "hidden_size": 8, "num_attention_heads": 2, "norm_epsilon": 1e-6, "vocab_size": VOCAB,
    "make_vocab_size_divisible_by": VOCAB, "untie_embeddings_and_output_weights": True, "mock_data": True,
}
TWO_SEQUENCES = {"seq_length": 12, "max_position_embeddings": 12, "micro_batch_size": 2, "global_batch_size": 4}
ONE_SEQUENCE = {"seq_length": 24, "max_position_embeddings": 24, "micro_batch_size": 1, "global_batch_size": 2}
DEEPSEEK = COMMON | {
    "model_type": "deepseek_v3", "num_layers": 2, "ffn_hidden_size": 12, "multi_latent_attention": True,
    "qk_layernorm": True, "q_lora_rank": 6, "kv_lora_rank": 4, "qk_head_dim": 4, "qk_pos_emb_head_dim": 4,
    "v_head_dim": 6, "num_experts": 6, "moe_layer_freq": [0, 1], "moe_ffn_hidden_size": 4,
    "moe_shared_expert_intermediate_size": 4, "moe_router_topk": 2, "moe_router_score_function": "sigmoid",
    "moe_router_num_groups": 2, "moe_router_group_topk": 1, "moe_router_topk_scaling_factor": 2.5,
    "moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": 2**-7,
    "moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.3, "moe_z_loss_coeff": 0.02,
    "mtp_num_layers": 2, "mtp_loss_scaling_factor": 0.3,
}
MIXTRAL = COMMON | {
    "model_type": "mixtral", "num_layers": 1, "ffn_hidden_size": 10, "num_query_groups": 1, "kv_channels": 6,
    "num_experts": 4, "moe_router_topk": 2, "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.3,
    "moe_z_loss_coeff": 0.02, "moe_expert_capacity_factor": 0.9, "moe_token_drop_policy": "position",
}
STEPS = {
    "deepseek_v3": {"settings": DEEPSEEK | TWO_SEQUENCES},
    "deepseek_v3_packed": {"settings": DEEPSEEK | ONE_SEQUENCE, "weights": "deepseek_v3",
                           "document_starts": [[0, 5, 6, 8, 19], [0, 9]]},
    "mixtral": {"settings": MIXTRAL | TWO_SEQUENCES},
}
# Keys of the experiment that build() does not pass to TransformerConfig under the same name.
NOT_OF_THE_CONFIG = set(COMMON | TWO_SEQUENCES) - {"hidden_size", "num_attention_heads"} | {
    "model_type", "multi_latent_attention", "num_experts"}


class PlainAttention(torch.nn.Module):
    """Causal attention; queries, keys and values are [positions, sequences, heads, width], or without sequences where
    documents are packed."""

    def __init__(self, softmax_scale: float | None = None, **_):
        super().__init__()
        self.softmax_scale = softmax_scale

    def forward(self, query, key, value, *_, packed_seq_params=None, **__):
        if packed_seq_params is None:
            return self.attend(query, key, value)
        lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
        documents = zip(*(x.unsqueeze(1).split(lengths) for x in (query, key, value)))
        return torch.cat([self.attend(*document) for document in documents]).squeeze(1)

    def attend(self, query, key, value):
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale,
                                                               enable_gqa=True)
        return out.permute(2, 0, 1, 3).flatten(2)


def build(settings: dict) -> GPTModel:
    latent = settings.get("multi_latent_attention", False)
    same = {key: value for key, value in settings.items() if key not in NOT_OF_THE_CONFIG}
    positions = {"rope_type": "rope", "rotary_base": 10000.0, "rotary_scaling_factor": 1.0} if latent else {}
    config = (MLATransformerConfig if latent else TransformerConfig)(
        **same, **positions, num_moe_experts=settings["num_experts"], layernorm_epsilon=settings["norm_epsilon"],
        moe_router_dtype="fp32", moe_token_dispatcher_type="allgather", normalization="RMSNorm", gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0,
        use_cpu_initialization=True, bias_activation_fusion=False, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False, apply_rope_fusion=False)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    for layer in spec.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = PlainAttention
    further = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False) if config.mtp_num_layers else None
    model = GPTModel(config, spec, VOCAB, settings["seq_length"], share_embeddings_and_output_weights=False,
                     position_embedding_type="rope", mtp_block_spec=further)
    draw = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=draw)
        if parameter.dim() == 1:
            parameter.data = 1 + 0.3 * noise
        else:
            parameter.data = (0.6 if "router" in name else 0.3) * noise
    for name, buffer in model.named_buffers():
        if name.endswith("expert_bias"):
            buffer.copy_(0.1 * torch.randn(buffer.shape, generator=draw))
    return model


def published(name: str, tensor: torch.Tensor, config: TransformerConfig) -> dict[str, torch.Tensor]:
    """Returns a tensor of Megatron's model, or its gradient, under the names of Hugging Face."""
    top = {"embedding.word_embeddings.weight": "model.embed_tokens.weight",
           "decoder.final_layernorm.weight": "model.norm.weight", "output_layer.weight": "lm_head.weight"}
    if name in top:
        return {top[name]: tensor}
    stack, _, index, rest = name.split(".", 3)
    at = f"model.layers.{int(index) + (config.num_layers if stack == 'mtp' else 0)}."
    rest = rest.removeprefix("transformer_layer.")
    plain = {
        "enorm.weight": "enorm.weight", "hnorm.weight": "hnorm.weight", "eh_proj.weight": "eh_proj.weight",
        "final_layernorm.weight": "shared_head.norm.weight", "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
        "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
        "self_attention.linear_q_down_proj.weight": "self_attn.q_a_proj.weight",
        "self_attention.q_layernorm.weight": "self_attn.q_a_layernorm.weight",
        "self_attention.linear_q_up_proj.weight": "self_attn.q_b_proj.weight",
        "self_attention.linear_kv_down_proj.weight": "self_attn.kv_a_proj_with_mqa.weight",
        "self_attention.kv_layernorm.weight": "self_attn.kv_a_layernorm.weight",
        "self_attention.linear_kv_up_proj.weight": "self_attn.kv_b_proj.weight",
        "mlp.router.expert_bias": "mlp.gate.e_score_correction_bias",
    }
    if rest in plain:
        return {at + plain[rest]: tensor}
    if rest == "self_attention.linear_qkv.weight":  # per group: queries, keys and values
        groups, width = config.num_query_groups, config.kv_channels
        of_group = tensor.reshape(groups, -1, width, tensor.shape[1])
        q, k, v = of_group.split([of_group.shape[1] - 2, 1, 1], dim=1)
        return {f"{at}self_attn.{x}_proj.weight": part.reshape(-1, tensor.shape[1]) for x, part in
                (("q", q), ("k", k), ("v", v))}
    moe, gate, up, down = "mlp", "gate_proj", "up_proj", "down_proj"
    if not isinstance(config, MLATransformerConfig) and config.num_moe_experts:
        moe, gate, up, down = "block_sparse_moe", "w1", "w3", "w2"
    if rest == "mlp.router.weight":
        return {f"{at}{moe}.gate.weight": tensor}
    parts = rest.removeprefix("mlp.").split(".")
    inner = {"experts": lambda: f"{moe}.experts.{parts[2]}.", "shared_experts": lambda: f"{moe}.shared_experts."}
    at += inner.get(parts[0], lambda: "mlp.")()
    if parts[-2] == "linear_fc2":
        return {f"{at}{down}.weight": tensor}
    assert parts[-2] == "linear_fc1", name
    first, second = tensor.chunk(2)
    return {f"{at}{gate}.weight": first, f"{at}{up}.weight": second}


def packed(starts: list[int], positions: int) -> PackedSeqParams:
    bounds = torch.tensor([*starts, positions], dtype=torch.int32)
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=positions,
                           max_seqlen_kv=positions)


def run_step(model: GPTModel, step: dict) -> tuple[dict, dict]:
    draw = torch.Generator().manual_seed(11)
    batch, positions = (step["settings"][key] for key in ("micro_batch_size", "seq_length"))
    shape = (MICROBATCHES, batch, positions)
    tokens, labels = (torch.randint(VOCAB, shape, generator=draw) for _ in range(2))
    mask = torch.ones(shape)
    mask[0, 0, 3] = mask[0, -1, 10] = 0
    mask[1, 0, 5:12] = 0  # gives microbatches different numbers of tokens
    places = torch.arange(positions).repeat(batch, 1)
    documents = [packed(starts, positions) for starts in step.get("document_starts", [])] or [None] * MICROBATCHES
    loss = 0.0
    for i in range(MICROBATCHES):
        token_losses = model(tokens[i], places, None, labels=labels[i], loss_mask=mask[i],
                             packed_seq_params=documents[i])

        def masked_sum(losses):
            return (losses * mask[i]).sum(), mask[i].sum().int(), None

        scaled, _ = forward_step_calc_loss(model, token_losses, masked_sum, model.config, None, False, MICROBATCHES, [],
                                           cp_group_size=1, is_last_stage=True)
        loss += float(scaled)
        scaled.backward()

    def means(sums) -> list[float]:
        return [float(x) / MICROBATCHES for x in sums]

    routers = {kind: means(entry["values"]) for kind, entry in get_moe_layer_wise_logging_tracker().items()}
    further = means(MTPLossLoggingHelper.tracker.get("values", []))
    result = {"loss": loss, "mtp_losses": further, "router_losses": routers}
    return result, {"tokens": tokens.int(), "labels": labels.int(), "loss_mask": mask}


def write(name: str, step: dict) -> None:
    get_moe_layer_wise_logging_tracker().clear()
    MTPLossLoggingHelper.tracker.clear()
    model = build(step["settings"])
    config = model.config

    def layout(tensors) -> dict[str, torch.Tensor]:
        return {key: part.detach().clone().contiguous() for of, tensor in tensors
                for key, part in published(of, tensor, config).items()}

    def biases():
        return [(of, buffer) for of, buffer in model.named_buffers() if of.endswith("expert_bias")]

    weights = layout([*model.named_parameters(), *biases()])
    result, tensors = run_step(model, step)
    loads = {of: module.local_tokens_per_expert.int().tolist() for of, module in model.named_modules()
             if getattr(module, "local_tokens_per_expert", None) is not None}
    if config.moe_router_enable_expert_bias:  # as finalize_model_grads does
        with torch.no_grad():
            _update_router_expert_bias([model], config)
    tensors |= layout([(of, p.grad) for of, p in model.named_parameters()] + biases())
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    golden = {"megatron-core": megatron_on_cpu.VERSION, "microbatches": MICROBATCHES, **step, **result,
              "tokens_per_expert": list(loads.values())}
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    for file, of_file in ({"golden": tensors} | ({} if "weights" in step else {"model": weights})).items():
        save_file(of_file, folder / f"{file}.safetensors", metadata={"format": "pt"})
        (folder / f"{file}.safetensors").chmod(0o644)
    print(name, {key: value for key, value in golden.items() if key != "settings"})


def main() -> None:
    megatron_on_cpu.start()
    for name, step in STEPS.items():
        write(name, step)


if __name__ == "__main__":
    main()
