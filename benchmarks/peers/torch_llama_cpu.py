#!/usr/bin/env python3
"""The peer on the CPU: a Llama training step in PyTorch, which a user would run instead.

Same model and step as `primus benchmark train`: RMSNorm, rotary embedding, causal grouped-query attention
(SDPA), SwiGLU, cross-entropy in fp32, gradient clipping, fused AdamW. Each variant runs in a separate
process, and the fastest counts: eager or torch.compile (needs a C++ compiler), with glibc's default malloc or with a
malloc that keeps its memory (by default every large tensor is unmapped and mapped again). fp32 is true
fp32; bf16 is autocast over fp32 weights.

    torch_llama_cpu.py --dtype fp32 --threads 2
    torch_llama_cpu.py --dtype bf16 --layers 4 --hidden 256 --variants eager

Prints one line of JSON: tokens_per_s, step_s, tflops, loss and peak_gib of the best variant, and of all
variants. cpu_s is the CPU time of a step: if it is well below threads * step_s, the machine was busy with
other work, and the rate is meaningless.

Needs Python 3.9+ and PyTorch 2.4+ for the CPU, nothing else:
    python3 -m venv peer && peer/bin/pip install torch setuptools
PyPI's wheel is the CUDA build. It also runs on the CPU, but importing it needs CUDA's libraries, which pip
installs with it (several GB). PyTorch's own index has a CPU-only build (pip's --index-url).
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

VARIANTS = ("eager", "eager+malloc", "compile", "compile+malloc")
# Makes malloc take large blocks from the heap, and never trim the heap.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(64 << 30),
               "MALLOC_TOP_PAD_": str(256 << 20)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--layers", type=int, default=12)
    add("--hidden", type=int, default=768)
    add("--heads", type=int, default=12)
    add("--kv-heads", type=int, help="default: heads")
    add("--ffn", type=int, default=2048)
    add("--vocab", type=int, default=50304)
    add("--seq", type=int, default=512)
    add("--micro-batch", type=int, default=4)
    add("--accumulation", type=int, default=1, help="microbatches per step")
    add("--tied", action="store_true", help="also use the embedding as the output matrix")
    add("--dtype", choices=("fp32", "bf16"), default="fp32")
    add("--threads", type=int, default=2)
    add("--steps", type=int, default=6, help="number of measured steps; the median counts")
    add("--warmup", type=int, default=2)
    add("--lr", type=float, default=1e-4)
    add("--seed", type=int, default=1234)
    add("--variants", default=",".join(VARIANTS), help="of: " + " ".join(VARIANTS))
    add("--one", metavar="VARIANT", help=argparse.SUPPRESS)  # used only to start the variants' processes
    args = parser.parse_args()
    args.kv_heads = args.kv_heads or args.heads
    unknown = set(args.variants.split(",")) - set(VARIANTS)
    if unknown:
        parser.error(f"unknown variants: {', '.join(sorted(unknown))}")
    return args


def build_model(args):
    import torch
    import torch.nn.functional as F
    from torch import nn

    head_dim = args.hidden // args.heads

    def rotate(x, cos, sin):
        first, second = x.chunk(2, -1)
        return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            q, kv = args.heads * head_dim, args.kv_heads * head_dim
            self.sizes = (q, kv, kv)
            self.norm1 = nn.RMSNorm(args.hidden, eps=1e-5)
            self.qkv = nn.Linear(args.hidden, sum(self.sizes), bias=False)
            self.out = nn.Linear(q, args.hidden, bias=False)
            self.norm2 = nn.RMSNorm(args.hidden, eps=1e-5)
            self.gate_up = nn.Linear(args.hidden, 2 * args.ffn, bias=False)
            self.down = nn.Linear(args.ffn, args.hidden, bias=False)

        def forward(self, x, cos, sin):
            b, s, _ = x.shape
            q, k, v = (t.view(b, s, -1, head_dim).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(self.sizes, -1))
            attended = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True,
                                                      enable_gqa=args.kv_heads != args.heads)
            x = x + self.out(attended.transpose(1, 2).reshape(b, s, -1))
            gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
            return x + self.down(F.silu(gate) * up)

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(args.vocab, args.hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
            self.norm = nn.RMSNorm(args.hidden, eps=1e-5)
            self.head = nn.Linear(args.hidden, args.vocab, bias=False)
            if args.tied:
                self.head.weight = self.embedding.weight
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)
            frequency = 1.0 / (10000 ** (torch.arange(0, head_dim, 2).float() / head_dim))
            angle = torch.outer(torch.arange(args.seq).float(), frequency)
            angle = torch.cat((angle, angle), -1)
            self.register_buffer("cos", angle.cos())
            self.register_buffer("sin", angle.sin())

        def forward(self, tokens, targets):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())

    return Llama()


def run_variant(args):
    import torch

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    model = build_model(args)
    forward = torch.compile(model) if args.one.startswith("compile") else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step():
        total = 0.0
        for _ in range(args.accumulation):
            tokens = torch.randint(0, args.vocab, (args.micro_batch, args.seq + 1))
            with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
                loss = forward(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            (loss / args.accumulation).backward()
            total += loss.item() / args.accumulation
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    for _ in range(args.warmup):
        loss = step()
    seconds, cpu_seconds = [], []
    for _ in range(args.steps):
        start, cpu_start = time.perf_counter(), time.process_time()
        loss = step()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)

    step_s = statistics.median(seconds)
    tokens = args.accumulation * args.micro_batch * args.seq
    # Model FLOPs: 6 per matrix weight and token, plus causal attention (half of 12 * seq * width per layer).
    matrix_weights = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    if not args.tied:
        matrix_weights -= model.embedding.weight.numel()
    flops = tokens * (6 * matrix_weights + 6 * args.layers * args.seq * args.hidden)
    return {"variant": args.one, "tokens_per_s": round(tokens / step_s, 1), "step_s": round(step_s, 4),
            "step_s_min": round(min(seconds), 4), "cpu_s": round(statistics.median(cpu_seconds), 4), "tflops": round(flops / step_s / 1e12, 4), "loss": round(loss, 5),
            "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
            "torch": torch.__version__}


def main():
    args = arguments()
    if args.one:
        print(json.dumps(run_variant(args)))
        return 0

    results = []
    for variant in args.variants.split(","):
        environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads))
        # Libraries that use this variable would select slow kernels.
        environment.pop("OPENBLAS_CORETYPE", None)
        environment.pop("OPENBLAS_L2_SIZE", None)
        if variant.endswith("+malloc"):
            environment.update(KEEP_MEMORY)
        done = subprocess.run([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--one", variant],
                              env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            results.append(json.loads(done.stdout.splitlines()[-1]))
        else:
            reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            results.append({"variant": variant, "error": reason})
        print(json.dumps(results[-1]), file=sys.stderr)
    worked = [result for result in results if "error" not in result]
    if not worked:
        print("error: no variant ran", file=sys.stderr)
        return 1
    best = max(worked, key=lambda result: result["tokens_per_s"])
    print(json.dumps({**best, "dtype": args.dtype, "threads": args.threads, "variants": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
