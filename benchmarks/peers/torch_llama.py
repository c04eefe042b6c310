#!/usr/bin/env python3
"""The peer on one GPU: training steps of a Llama as a user of PyTorch would write them, with random tokens.

    torch_llama.py LAYERS SEQUENCE MICROBATCH MICROBATCHES bf16|amp COMPILE [--device cpu] [--steps 6] [--losses]
                   [--adapters RANK]

bf16: weights, gradients and moments are bf16. amp: they are fp32, and autocast computes in bf16. COMPILE is 1
for torch.compile and 0 without it. A step is MICROBATCHES forward and backward passes, clipping to norm 1 and
fused AdamW. The result is the median of the steps, after three warm-up steps. With --adapters all weights are
frozen, and LoRA adapters of each block's products are trained. DIMS in the environment is
hidden,ffn,heads,groups,vocabulary; default: Llama-3-8B.

Prints one line: tokens/s, model TFLOP/s (6 FLOPs per weight of a product; causal attention counts half), peak
memory and the last loss; or that memory ran out. scripts/gpu_peers.sh reads it. Needs only PyTorch 2.5 or
later.
"""
import argparse
import os
import statistics
import time

import torch

from llama import Llama, Shape, adapt, optimizer_of, rotations


def arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("layers", "sequence", "microbatch", "microbatches"):
        parser.add_argument(name, type=int)
    parser.add_argument("mode", choices=("bf16", "amp"))
    parser.add_argument("compile", type=int, choices=(0, 1))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu is for trying the script")
    parser.add_argument("--steps", type=int, default=6, help="number of timed steps")
    parser.add_argument("--adapters", type=int, metavar="RANK", help="train only low-rank adapters of this rank")
    parser.add_argument("--losses", action="store_true", help="print the loss of every step, including warm-up steps")
    return parser.parse_args()


def measure(args, shape, kind):
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    on_gpu = args.device == "cuda"
    with torch.device(args.device):
        model = kind(shape).to(torch.bfloat16 if args.mode == "bf16" else torch.float32).draw()
        if args.adapters:
            adapt(model, args.adapters)
    forward = torch.compile(model) if args.compile else model
    optimizer = optimizer_of(model)
    cos, sin = rotations(shape, args.sequence, args.device)

    def step():
        for _ in range(args.microbatches):
            tokens, targets = (torch.randint(0, shape.vocabulary, (args.microbatch, args.sequence), device=args.device)
                               for _ in range(2))
            with torch.autocast(args.device, torch.bfloat16, enabled=args.mode == "amp"):
                loss = forward(tokens, targets, cos, sin)
            (loss / args.microbatches).backward()
        torch.nn.utils.clip_grad_norm_([weight for weight in model.parameters() if weight.requires_grad], 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    seconds = []
    for number in range(3 + args.steps):
        if on_gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = step()
        if on_gpu:
            torch.cuda.synchronize()
        if number >= 3:
            seconds.append(time.perf_counter() - begin)
        if args.losses:
            print(f"step {number + 1} loss {loss.item():.6f}")
    rate = args.microbatches * args.microbatch * args.sequence / statistics.median_high(seconds)
    memory = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
    return f"{rate:.0f} tok/s {rate * shape.flops(args.sequence) / 1e12:.1f} TFLOP/s mem {memory:.1f} GiB loss {loss.item():.3f}"


def main(name, description, shape_kind, kind):
    args = arguments(description)
    dimensions = [int(word) for word in os.environ["DIMS"].split(",")] if "DIMS" in os.environ else []
    try:
        result = measure(args, shape_kind(args.layers, *dimensions), kind)
    except torch.OutOfMemoryError:
        result = "OOM"
    print(f"PEER {name} L{args.layers} S{args.sequence} B{args.microbatch} ACC{args.microbatches} {args.mode} "
          f"compile={args.compile}: {result}", flush=True)


if __name__ == "__main__":
    main("torch", __doc__, Shape, Llama)
