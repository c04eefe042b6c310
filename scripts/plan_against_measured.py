#!/usr/bin/env python3
"""Compares plans for an absent H200 (--dry-run --hardware h200) with the measured runs in
docs/performance-log.md.

    scripts/plan_against_measured.py [--primus build/bin/primus]

The rows are the rows of gpu_peers.sh. The measured values are tokens/s and the GiB used by a step, from the
table in docs/performance-log.md. Exit code: 1 if a plan has less than 97 % of the memory used, because a run whose plan
fits must fit in reality. Times are estimates and are not checked.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BF16 = ["exp_avg_dtype=bf16", "exp_avg_sq_dtype=bf16", "main_grads_dtype=bf16"]
LLAMA = ["num_layers=16", "micro_batch_size=1", "seq_length=8192", "global_batch_size=4"]
ROWS = {
    "bf16": ["llama3_8B", *LLAMA, *BF16],
    "amp": ["llama3_8B", *LLAMA],
    "lean": ["llama3_8B", *LLAMA, "main_grads_dtype=bf16", "recompute_granularity=selective",
             "recompute_modules=[layernorm,mlp]"],
    "short": ["llama3_8B", "num_layers=16", "micro_batch_size=4", "seq_length=2048", "global_batch_size=16", *BF16],
    "long": ["llama3_8B", "num_layers=16", "micro_batch_size=1", "seq_length=32768", "global_batch_size=1", *BF16],
    "heads": ["llama3.2_1B", "seq_length=8192", "micro_batch_size=2", "global_batch_size=8", *BF16],
    "groups": ["llama3_8B", *LLAMA, "num_query_groups=4", *BF16],
    "small": ["qwen2.5_3B", "model=qwen2.5_0.5B.yaml", "seq_length=4096", "micro_batch_size=4", "global_batch_size=16",
              *BF16],
    "whole": ["llama3.1_8B", "seq_length=8192", "micro_batch_size=1", "global_batch_size=4", *BF16],
}


def measured():
    """(tokens/s, GiB used) of each row of the table."""
    text = (ROOT / "docs/performance-log.md").read_text()
    found = {}
    for line in text.splitlines():
        match = re.match(r"\| `(\w+)`: [^|]*\| ([\d ]+), \d+, [\d.]+ \(([\d.]+)\)", line)
        if match and match[1] in ROWS:
            found[match[1]] = (int(match[2].replace(" ", "")), float(match[3]))
    return found


def plan(primus, name):
    config, *words = ROWS[name]
    file = ROOT / f"examples/native/configs/any/{config}-BF16-pretrain.yaml"
    done = subprocess.run([primus, "train", "pretrain", "--config", file, "--dry-run", "--json", "--hardware", "h200",
                           "mock_data=true", *words], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{name}: {done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--primus", default=str(ROOT / "build/bin/primus"))
    args = parser.parse_args()
    print("| row | GiB planned | kept for libraries | GiB taken | tokens/s estimated | measured | |\n|---|---|---|---|---|---|---|")
    short = []
    for name, (rate, taken) in measured().items():
        forecast = plan(args.primus, name)
        memory, hardware = forecast["memory_bytes"], forecast["hardware"]
        planned = sum(memory[part] for part in ("persistent", "stash", "scratch")) / 2**30
        kept = hardware["memory_bytes"]["reserved_for_libraries"] / 2**30
        estimate = forecast["tokens_per_step"] / forecast["seconds_per_step"]
        print(f"| {name} | {planned:.1f} | {kept:.1f} | {taken} | {estimate:.0f} | {rate} | {estimate / rate:.2f} |")
        if planned + kept < 0.97 * taken:
            short.append(name)
    if short:
        sys.exit(f"error: planned with less than was taken: {', '.join(short)}")


if __name__ == "__main__":
    main()
