#!/usr/bin/env python3
"""Writes router.json and router.safetensors: results of Megatron-LM's TopKRouter for given logits. Run by
hand; needs torch and `pip install --no-deps megatron-core==0.16.1`.

router.json has Megatron's version and the cases with their settings and results (losses without their
coefficients; rows: the capacity of an expert). router.safetensors has for each case, with tokens ordered by
[sequences, positions]:

  NAME.logits         [tokens, experts]
  NAME.expert_bias    [experts], if used: before the step; NAME.new_expert_bias: after get_updated_expert_bias
  NAME.chosen         [tokens, topk] int32, ascending: the experts of a token, before any is dropped
  NAME.probs          [tokens, experts], 0 where not chosen or dropped
  NAME.d_probs        [tokens, experts] input: the objective is (probs * d_probs).sum() + the losses times coefficients
  NAME.d_logits       [tokens, experts] its gradient, by autograd
"""

import json
import pathlib

import megatron_on_cpu
import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent

# batch, positions, experts, and Megatron's settings
CASES = {
    "mixtral": (2, 12, 8, {"topk": 2, "load_balancing": "aux_loss", "aux": 0.7}),
    "mixtral_z": (2, 12, 8, {"topk": 2, "load_balancing": "none", "z": 0.3}),
    "softmax_of_sequences": (3, 8, 8, {"topk": 3, "load_balancing": "seq_aux_loss", "aux": 0.7, "z": 0.3}),
    "pre_softmax": (2, 12, 10, {"topk": 3, "pre_softmax": True, "scaling": 1.5, "load_balancing": "aux_loss",
                                "aux": 0.7}),
    "pre_softmax_top1": (2, 12, 4, {"topk": 1, "pre_softmax": True, "load_balancing": "aux_loss", "aux": 0.7}),
    "groups_by_best": (2, 12, 12, {"topk": 2, "pre_softmax": True, "groups": 4, "group_topk": 2, "scaling": 16.0,
                                   "load_balancing": "seq_aux_loss", "aux": 0.7}),
    "groups_by_two_best": (2, 12, 12, {"topk": 4, "pre_softmax": True, "groups": 4, "group_topk": 2,
                                       "load_balancing": "seq_aux_loss", "aux": 0.7}),
    "deepseek_v3": (2, 12, 16, {"topk": 4, "score": "sigmoid", "bias": True, "groups": 4, "group_topk": 2,
                                "scaling": 2.5, "load_balancing": "seq_aux_loss", "aux": 0.7, "z": 0.3}),
    "sigmoid": (2, 12, 8, {"topk": 3, "score": "sigmoid", "load_balancing": "aux_loss", "aux": 0.7}),
    "sigmoid_with_bias": (2, 12, 8, {"topk": 3, "score": "sigmoid", "bias": True, "load_balancing": "none"}),
    "sigmoid_top1": (2, 12, 8, {"topk": 1, "score": "sigmoid", "load_balancing": "aux_loss", "aux": 0.7}),
    "many_experts": (1, 12, 64, {"topk": 8, "load_balancing": "aux_loss", "aux": 0.7, "z": 0.3}),
    "drop_by_probs": (2, 12, 6, {"topk": 2, "capacity": 0.8, "drop": "probs", "load_balancing": "aux_loss",
                                 "aux": 0.7}),
    "drop_by_position": (2, 12, 6, {"topk": 2, "capacity": 0.8, "drop": "position", "load_balancing": "aux_loss",
                                    "aux": 0.7}),
    "drop_little": (1, 20, 6, {"topk": 3, "capacity": 1.1, "drop": "probs", "load_balancing": "seq_aux_loss",
                               "aux": 0.7}),
}
# Arguments of get_capacity: slots, experts and a factor. In some cases, rounding moves a product or quotient across an
# integer.
CAPACITIES = [(64, 5, 0.8), (100, 10, 1.1), (100, 5, 1.15), (300, 10, 1.1), (4096, 8, 1.25), (70, 7, 1.4), (48, 6, 0.3),
              (8192 * 8, 64, 1.05), (1000, 8, 1.2), (30, 3, 1.7), (100, 3, 1.05), (100, 7, 1.05)]


def config_of(experts: int, s: dict) -> TransformerConfig:
    return TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, add_bias_linear=False, use_cpu_initialization=True,
        num_moe_experts=experts, moe_router_topk=s["topk"], moe_router_dtype="fp32",
        moe_router_pre_softmax=s.get("pre_softmax", False), moe_router_score_function=s.get("score", "softmax"),
        moe_router_num_groups=s.get("groups"), moe_router_group_topk=s.get("group_topk"),
        moe_router_topk_scaling_factor=s.get("scaling"), moe_router_enable_expert_bias=s.get("bias", False),
        moe_router_bias_update_rate=2**-7, moe_router_load_balancing_type=s["load_balancing"],
        moe_aux_loss_coeff=s.get("aux", 0.0), moe_z_loss_coeff=s.get("z"),
        moe_expert_capacity_factor=s.get("capacity"), moe_token_drop_policy=s.get("drop", "probs"),
        moe_token_dispatcher_type="alltoall")


def run(name: str, batch: int, positions: int, experts: int, s: dict, seed: int) -> tuple[dict, dict]:
    draw = torch.Generator().manual_seed(seed)
    # Experts have different mean logits, so that they are not balanced.
    logits = torch.randn(positions, batch, experts, generator=draw) + torch.linspace(0.8, -0.8, experts)
    logits.requires_grad_()
    d_probs = torch.randn(positions * batch, experts, generator=draw)
    config = config_of(experts, s)
    router = TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups())
    router.set_layer_number(1)
    if router.expert_bias is not None:
        router.expert_bias.copy_(0.2 * torch.randn(experts, generator=draw))
    moe_utils.clear_aux_losses_tracker()
    probs, kept = router.routing(logits)
    (probs * d_probs).sum().backward()
    _, chosen = moe_utils.topk_routing_with_score_function(
        logits.detach().reshape(-1, experts), s["topk"], use_pre_softmax=config.moe_router_pre_softmax,
        num_groups=config.moe_router_num_groups, group_topk=config.moe_router_group_topk,
        scaling_factor=config.moe_router_topk_scaling_factor, score_function=config.moe_router_score_function,
        expert_bias=router.expert_bias)
    dropped = int(chosen.sum() - kept.sum())
    assert (dropped > 0) == ("capacity" in s)

    def by_sequence(x: torch.Tensor) -> torch.Tensor:  # Megatron's outer dimension is positions
        return x.detach().reshape(positions, batch, experts).transpose(0, 1).reshape(-1, experts).contiguous()

    experts_of_token = by_sequence(chosen).nonzero()[:, 1].reshape(-1, s["topk"])
    tensors = {"logits": by_sequence(logits), "chosen": experts_of_token.int().contiguous(),
               "probs": by_sequence(probs), "d_probs": by_sequence(d_probs), "d_logits": by_sequence(logits.grad)}
    if router.expert_bias is not None:
        tensors["expert_bias"] = router.expert_bias.clone()
        tensors["new_expert_bias"] = moe_utils.get_updated_expert_bias(
            router.local_tokens_per_expert, router.expert_bias, config.moe_router_bias_update_rate)
    tracked = moe_utils.get_moe_layer_wise_logging_tracker()
    losses = {kind: float(tracked[kind]["values"][0]) for kind in tracked if tracked[kind]["values"][0] != 0}
    balance = losses.get("load_balancing_loss", losses.get("seq_load_balancing_loss"))
    case = {"name": name, "batch": batch, "experts": experts, "settings": s, "dropped": dropped,
            "balance_loss": balance, "z_loss": losses.get("z_loss")}
    if "capacity" in s:
        case["rows"] = moe_utils.get_capacity(batch * positions * s["topk"], experts, s["capacity"])
    return case, {f"{name}.{key}": value for key, value in tensors.items()}


def main() -> None:
    megatron_on_cpu.start()
    cases, tensors = [], {}
    for seed, (name, (batch, positions, experts, settings)) in enumerate(CASES.items()):
        case, of_case = run(name, batch, positions, experts, settings, seed)
        print(case)
        cases.append(case)
        tensors |= of_case
    capacities = [{"slots": n, "experts": e, "factor": f, "capacity": moe_utils.get_capacity(n, e, f)}
                  for n, e, f in CAPACITIES]
    text = {"megatron-core": megatron_on_cpu.VERSION, "bias_update_rate": 2**-7, "cases": cases,
            "capacities": capacities}
    (HERE / "router.json").write_text(json.dumps(text, indent=1) + "\n")
    save_file(tensors, HERE / "router.safetensors")
    (HERE / "router.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
