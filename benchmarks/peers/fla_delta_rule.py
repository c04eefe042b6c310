#!/usr/bin/env python3
"""The peer of `gpu_bench --delta`: flash-linear-attention's delta rules of full sequences, forward, on one GPU, in bf16.

    fla_delta_rule.py [--tokens 8192] [--repeats 30]

head: one gate per head, 16 key heads and 32 value heads of 128 (Qwen3.5-35B-A3B). channel: one gate per key channel, 32
heads of 128 (Kimi Linear 48B-A3B). Queries and keys are normed before, so fla does less work than Primus, which norms
them. Prints a line for each: the median time of a call, including its launches by the host. Needs PyTorch and fla.
"""
import argparse
import statistics


def milliseconds(torch, call, repeats):
    for _ in range(5):
        call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()

    import torch
    import torch.nn.functional as F
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
        from fla.ops.kda import chunk_kda
    except ImportError as error:
        print(f"PEER fla: not here ({error})", flush=True)
        return

    def random(*shape):
        return torch.randn(1, options.tokens, *shape, device="cuda")

    for name, rule, key_heads, gate in (("head", chunk_gated_delta_rule, 16, (32,)), ("channel", chunk_kda, 32, (32, 128))):
        q, k = (F.normalize(random(key_heads, 128), dim=-1).bfloat16() for _ in range(2))
        v = random(32, 128).bfloat16()
        g, beta = F.logsigmoid(random(*gate)), torch.rand(1, options.tokens, 32, device="cuda").bfloat16()
        try:
            with torch.no_grad():
                time = milliseconds(torch, lambda: rule(q, k, v, g, beta), options.repeats)
        except Exception as error:  # a refusal of one rule is a result, too
            print(f"PEER fla {name}: failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        print(f"PEER fla {name}: forward {time:.4f} ms", flush=True)


if __name__ == "__main__":
    main()
