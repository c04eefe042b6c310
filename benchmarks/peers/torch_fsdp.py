#!/usr/bin/env python3
"""The peer on several GPUs: PyTorch's FSDP (fully_shard), with Llama-3-8B's dimensions and random tokens.

    torchrun --nproc-per-node N torch_fsdp.py LAYERS SEQUENCE MICROBATCH MICROBATCHES RECOMPUTE [--device cpu] [--losses]

Weights and moments are fp32 and sharded, products are bf16, and gradients are reduced in fp32 once per step.
Each block and the loss are compiled. RECOMPUTE is 1 to recompute each block in backward. A step is
MICROBATCHES forward and backward passes per rank, clipping to norm 1 and fused AdamW. The result is the
median of five steps, after three warm-up steps.

Rank 0 prints one line: tokens/s and model TFLOP/s per GPU, and its peak memory. DIMS as in torch_llama.py;
COMPILE=0 in the environment disables compilation. Needs only PyTorch 2.6 or later.
"""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from llama import Llama, Shape, cross_entropy, optimizer_of, rotations


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("layers", "sequence", "microbatch", "microbatches"):
        parser.add_argument(name, type=int)
    parser.add_argument("recompute", type=int, choices=(0, 1))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu is for trying the script")
    parser.add_argument("--losses", action="store_true", help="print rank 0's loss of every step")
    return parser.parse_args()


def sharded_model(args, shape, compiled, mesh):
    loss = torch.compile(cross_entropy) if compiled else cross_entropy
    again = {"around": lambda block, *inputs: checkpoint(block, *inputs, use_reentrant=False)} if args.recompute else {}
    with torch.device("meta"):
        model = Llama(shape, loss, **again)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        if compiled:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model.to_empty(device=args.device).draw()


def main():
    args = arguments()
    dimensions = [int(word) for word in os.environ["DIMS"].split(",")] if "DIMS" in os.environ else []
    shape, on_gpu = Shape(args.layers, *dimensions), args.device == "cuda"
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    wait = torch.cuda.synchronize if on_gpu else dist.barrier
    if on_gpu:
        torch.cuda.set_device(rank)
    model = sharded_model(args, shape, os.environ.get("COMPILE", "1") == "1", init_device_mesh(args.device, (world,)))
    optimizer = optimizer_of(model)
    cos, sin = rotations(shape, args.sequence, args.device)

    def step():
        for number in range(args.microbatches):
            model.set_requires_gradient_sync(number == args.microbatches - 1)
            tokens, targets = (torch.randint(0, shape.vocabulary, (args.microbatch, args.sequence), device=args.device)
                               for _ in range(2))
            loss = model(tokens, targets, cos, sin)
            (loss / args.microbatches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    seconds = []
    for number in range(8):
        wait()
        begin = time.perf_counter()
        loss = step()
        wait()
        if number >= 3:
            seconds.append(time.perf_counter() - begin)
        if args.losses and rank == 0:
            print(f"step {number + 1} loss {loss.item():.6f}")
    rate = args.microbatches * args.microbatch * args.sequence / statistics.median(seconds)
    memory = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
    if rank == 0:
        print(f"PEER fsdp2 x{world} L{args.layers} S{args.sequence} B{args.microbatch} ACC{args.microbatches} AC{args.recompute}: "
              f"{rate:.0f} tok/s/GPU {rate * shape.flops(args.sequence) / 1e12:.1f} TFLOP/s/GPU mem {memory:.1f} GiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
