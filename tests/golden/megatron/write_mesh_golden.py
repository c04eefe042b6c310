#!/usr/bin/env python3
"""Writes meshes/golden.json and meshes/MODEL/model.safetensors: training with Megatron-LM on several ranks,
ten steps of four microbatches for every mesh below. Run by hand; needs torch and megatron-core
(megatron_on_cpu.py).

  write_mesh_golden.py [MESH ...]    only these meshes, and the single rank of their models; default: all

golden.json has Megatron's version, the settings of each model under the names of its command line, the
tokens, and the losses of every step of every mesh as means over all microbatches. "tokens" is [steps,
microbatches, sequences, positions + 1]: the inputs of a sequence are all tokens but the last, and the labels
all but the first. model.safetensors has the initial weights in Hugging Face's layout.

Megatron provides the model with its parallel layers, the dispatch of tokens to experts, the pipeline
schedule, the reduction of gradients, clipping by the norm over all ranks, and the optimizer (PyTorch's AdamW,
as without Apex). Ranks are processes that communicate over gloo. This script provides the parts of a training
script: initial weights, data, and the sum of the loss. Megatron takes norms and attention from Transformer
Engine, and this script from PyTorch. With several context ranks this script therefore gathers the keys
itself, by Megatron's collectives and with its division of sequences. The learning rate is constant, and
weight decay applies to all parameters, including norms.
"""

import json
import os
import pathlib
import sys
import tempfile

import megatron_on_cpu
import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.utils import get_batch_on_this_cp_rank
from safetensors.torch import save_file
from write_model_golden import COMMON, NOT_OF_THE_CONFIG, published

FOLDER = pathlib.Path(__file__).resolve().parent / "meshes"
STEPS, MICROBATCHES, VOCAB = 10, 4, 32
BATCH = {"seq_length": 16, "max_position_embeddings": 16, "micro_batch_size": 2, "global_batch_size": 2 * MICROBATCHES}
OPTIMIZER = {"lr": 3e-3, "weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "clip_grad": 1.0}
DENSE = COMMON | BATCH | {
    "model_type": "llama", "num_layers": 4, "hidden_size": 16, "num_attention_heads": 4, "num_query_groups": 2,
    "kv_channels": 4, "ffn_hidden_size": 24, "group_query_attention": True,
}
MIXTURE = DENSE | {
    "model_type": "mixtral", "num_layers": 2, "num_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 24,
    "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.05, "moe_z_loss_coeff": 0.01,
}
MODELS = {"dense": DENSE, "mixture": MIXTURE}
TENSOR, CONTEXT, PIPELINE = (f"{axis}_parallel_size" for axis in ("tensor_model", "context", "pipeline_model"))
EXPERT, EXPERT_TENSOR = "expert_model_parallel_size", "expert_tensor_parallel_size"
# Model, ranks, axes, and further settings of the experiment.
MESHES = {
    "one": ("dense", 1, {}, {}),
    "dp2": ("dense", 2, {}, {}),
    "tp2": ("dense", 2, {TENSOR: 2}, {}),
    "cp2": ("dense", 2, {CONTEXT: 2}, {}),
    "pp2": ("dense", 2, {PIPELINE: 2}, {}),
    "tp2_pp2": ("dense", 4, {TENSOR: 2, PIPELINE: 2}, {}),
    "tp2_dp2": ("dense", 4, {TENSOR: 2}, {}),
    "mixture_one": ("mixture", 1, {}, {}),
    "mixture_ep2": ("mixture", 2, {EXPERT: 2}, {"moe_token_dispatcher_type": "alltoall"}),
    "mixture_ep2_allgather": ("mixture", 2, {EXPERT: 2}, {"moe_token_dispatcher_type": "allgather"}),
    "mixture_ep4": ("mixture", 4, {EXPERT: 4}, {"moe_token_dispatcher_type": "alltoall"}),
    "mixture_tp2_ep2": ("mixture", 2, {TENSOR: 2, EXPERT: 2, EXPERT_TENSOR: 1}, {"moe_token_dispatcher_type": "alltoall"}),
    "mixture_tp2_ep2_etp2": ("mixture", 4, {TENSOR: 2, EXPERT: 2, EXPERT_TENSOR: 2},
                             {"moe_token_dispatcher_type": "allgather"}),  # gloo cannot gather uneven parts
    "mixture_ep2_pp2": ("mixture", 4, {PIPELINE: 2, EXPERT: 2}, {"moe_token_dispatcher_type": "alltoall"}),
}


class Attention(torch.nn.Module):
    """Causal attention of this rank's queries; [positions, sequences, heads, width]. With n context ranks, rank r has the
    chunks r and 2n - 1 - r of each sequence."""

    def __init__(self, config, *_, **__):
        super().__init__()

    def forward(self, query, key, value, *_, **__):
        ranks, rank = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
        if ranks > 1:
            group = parallel_state.get_context_parallel_group()
            key, value = (gather_from_sequence_parallel_region(x, group=group) for x in (key, value))
        chunk = key.shape[0] // (2 * ranks)

        def positions(of_rank):
            return [torch.arange(c * chunk, (c + 1) * chunk) for c in (of_rank, 2 * ranks - 1 - of_rank)]

        of_queries = torch.cat(positions(rank))
        of_keys = torch.cat([part for r in range(ranks) for part in positions(r)])
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=of_queries[:, None] >= of_keys[None, :], enable_gqa=True)
        return out.permute(2, 0, 1, 3).flatten(2)


class Norm(torch.nn.RMSNorm):
    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_):
        super().__init__(hidden_size, eps)
        self.weight.sequence_parallel = config.sequence_parallel  # Megatron sums these gradients over tensor ranks


def config_of(settings: dict, axes: dict, further: dict) -> TransformerConfig:
    same = {key: value for key, value in settings.items()
            if key not in NOT_OF_THE_CONFIG | {"group_query_attention"}}
    return TransformerConfig(
        **same, **axes, **further, num_moe_experts=settings.get("num_experts"), moe_router_dtype="fp32",
        layernorm_epsilon=settings["norm_epsilon"], normalization="RMSNorm", gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0,
        use_cpu_initialization=True, bias_activation_fusion=False, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False, apply_rope_fusion=False, pipeline_dtype=torch.float32,
        batch_p2p_sync=False, sequence_parallel=axes.get(TENSOR, 1) > 1)


def part_of_model(config: TransformerConfig) -> GPTModel:
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    spec.layer_norm = Norm
    for layer in spec.layer_specs:
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
        layer.submodules.self_attention.submodules.core_attention = Attention
    return GPTModel(config, spec, VOCAB, BATCH["seq_length"], share_embeddings_and_output_weights=False,
                    position_embedding_type="rope", pre_process=parallel_state.is_pipeline_first_stage(),
                    post_process=parallel_state.is_pipeline_last_stage())


def whole_name(name: str, config: TransformerConfig) -> str:
    """Returns the name of the parameter in the model of one rank."""
    parts = name.split(".")
    if parts[0] == "decoder" and parts[1] == "layers":
        parts[2] = str(int(parts[2]) + get_transformer_layer_offset(config))
    if "local_experts" in parts:
        at = parts.index("local_experts") + 1
        own = config.num_moe_experts // config.expert_model_parallel_size
        parts[at] = str(int(parts[at]) + own * parallel_state.get_expert_model_parallel_rank())
    return ".".join(parts)


def own_part(name: str, whole: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    if whole.shape == shape:
        return whole
    expert = "local_experts" in name
    ranks, rank = ((parallel_state.get_expert_tensor_parallel_world_size(), parallel_state.get_expert_tensor_parallel_rank())
                   if expert else (parallel_state.get_tensor_model_parallel_world_size(),
                                   parallel_state.get_tensor_model_parallel_rank()))
    if "linear_fc1" in name:  # rows of gate, then of up
        return torch.cat([half.chunk(ranks)[rank] for half in whole.chunk(2)])
    dim = next(i for i, (x, y) in enumerate(zip(whole.shape, shape)) if x != y)
    return whole.chunk(ranks, dim)[rank]


def draw_weights(model: GPTModel) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(7)
    return {name: 1 + 0.3 * torch.randn(p.shape, generator=draw) if p.dim() == 1 else
            (0.6 if "router" in name else 0.3) * torch.randn(p.shape, generator=draw)
            for name, p in model.named_parameters()}


def train(name: str, tokens: torch.Tensor, weights_file: pathlib.Path) -> list[float]:
    model_name, _, axes, further = MESHES[name]
    config = config_of(MODELS[model_name], axes, further)
    model = part_of_model(config)
    if weights_file.exists():
        weights = torch.load(weights_file)
    else:  # the run with one rank, which comes first
        weights = draw_weights(model)
        torch.save(weights, weights_file)
        layout = {key: part.clone().contiguous() for of, tensor in weights.items()
                  for key, part in published(of, tensor, config).items()}
        file = FOLDER / model_name / "model.safetensors"
        file.parent.mkdir(exist_ok=True)
        save_file(layout, file, metadata={"format": "pt"})
        file.chmod(0o644)
    for of, parameter in model.named_parameters():
        whole = whole_name(of, config)
        parameter.data.copy_(own_part(whole, weights[whole], parameter.shape))

    model = DistributedDataParallel(
        config, DistributedDataParallelConfig(overlap_grad_reduce=False, use_distributed_optimizer=False), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", bf16=False, **OPTIMIZER), [model],
                                       use_gloo_process_groups=False)
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = model.no_sync

    data_ranks, data_rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    microbatches = MICROBATCHES // data_ranks

    def batches(step):
        for i in range(microbatches):
            rows = tokens[step, i * data_ranks + data_rank]
            positions = torch.arange(rows.shape[1] - 1).repeat(rows.shape[0], 1)
            yield get_batch_on_this_cp_rank({"tokens": rows[:, :-1].contiguous(), "labels": rows[:, 1:].contiguous(),
                                             "position_ids": positions})

    def sum_of_losses(losses):
        total, count = losses.float().sum(), torch.tensor(losses.numel(), dtype=torch.int)
        return total, count, {"sum": float(total), "count": losses.numel()}

    def forward_step(iterator, model):
        batch = next(iterator)
        return model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"]), sum_of_losses

    losses = []
    for step in range(STEPS):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        reports = get_forward_backward_func()(
            forward_step_func=forward_step, data_iterator=batches(step), model=model, num_microbatches=microbatches,
            seq_length=BATCH["seq_length"], micro_batch_size=BATCH["micro_batch_size"], forward_only=False)
        assert optimizer.step()[0]
        # Only the last stage has reports, and tensor ranks have equal reports, so the quotient of the sums is the mean.
        sums = torch.tensor([[r["sum"], r["count"]] for r in reports], dtype=torch.float64).reshape(-1, 2).sum(0)
        torch.distributed.all_reduce(sums)
        losses.append(float(sums[0] / sums[1]))
    return losses


def rank_main(rank: int, name: str, port: int, tokens: torch.Tensor, weights_file: pathlib.Path, result) -> None:
    torch.set_num_threads(1)
    _, ranks, axes, _ = MESHES[name]
    os.environ["MASTER_PORT"] = str(port)
    megatron_on_cpu.start(rank, ranks, **axes)
    losses = train(name, tokens, weights_file)
    if rank == 0:
        result.put(losses)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    tokens = torch.randint(VOCAB, (STEPS, MICROBATCHES, BATCH["micro_batch_size"], BATCH["seq_length"] + 1),
                           generator=torch.Generator().manual_seed(11))
    wanted = set(sys.argv[1:] or MESHES)
    wanted |= {name for name, mesh in MESHES.items() if mesh[1] == 1 and mesh[0] in {MESHES[w][0] for w in wanted}}
    file = FOLDER / "golden.json"
    golden = {"megatron-core": megatron_on_cpu.VERSION, "torch": torch.__version__, "optimizer": OPTIMIZER,
              "models": MODELS, "meshes": json.loads(file.read_text())["meshes"] if file.exists() else {}, "tokens": []}
    context = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as temporary:
        for i, (name, (model, ranks, axes, further)) in enumerate(MESHES.items()):
            if name not in wanted:
                continue
            result = context.SimpleQueue()
            weights_file = pathlib.Path(temporary) / f"{model}.pt"
            torch.multiprocessing.spawn(rank_main, (name, 29600 + i, tokens, weights_file, result), nprocs=ranks)
            losses = result.get()
            golden["meshes"][name] = {"model": model, "ranks": ranks, "settings": axes | further, "losses": losses}
            print(name, losses, flush=True)
            text = json.dumps(golden, indent=1).replace('"tokens": []', f'"tokens": {json.dumps(tokens.tolist())}')
            file.write_text(text + "\n")


if __name__ == "__main__":
    main()
