#!/bin/sh
# Compares post-training on one GPU of this machine with the programs that users would take otherwise, one after the other
# in this run. Weights are random.
#
#   scripts/gpu_posttrain_peers.sh [ROW]...     all rows by default
#
# lora    fine-tuning of Llama-3.1-8B with adapters of rank 16 at every product of a block, sequences of 4096, microbatches
#         of 2, bf16; peer: transformers and PEFT with compiled blocks (benchmarks/peers/peft_llama.py)
# grpo    GRPO of Qwen3-0.6B with such adapters: 64 answers of up to 256 tokens; peer: TRL with transformers' generation
#         (benchmarks/peers/trl_grpo.py), whose answers all have 256 tokens. Our rates are those of the log: generation in
#         rollout/tokens_per_second, and learning in milliseconds per iteration, without generation. TRL must
#         report three steps
#
# Needs build/bin/primus, the plug-in next to it, and for the peers PyTorch, transformers, PEFT, and TRL. PRIMUS sets another
# program. Exits 1 if a program fails. TRL does not use vLLM here.
set -eu
cd "$(dirname "$0")/.."
primus=${PRIMUS:-build/bin/primus}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
. scripts/find_cudnn.sh

# peer LINES SCRIPT ARGUMENT...: prints the lines of the peer that start with PEER. Fails if there are fewer than LINES.
peer() {
  lines=$1 script=benchmarks/peers/$2
  shift 2
  timeout 200 python3 "$script" "$@" >"$scratch/peer" 2>&1 || true
  grep -aoE 'PEER .*' "$scratch/peer" || true
  if [ "$(grep -acE 'PEER .*' "$scratch/peer")" -lt "$lines" ]; then
    failed=1
    tail -n 3 "$scratch/peer"
  fi
}

[ $# -gt 0 ] || set -- lora grpo
for wanted; do
  case $wanted in
    lora)
      "$primus" benchmark train --config examples/native/configs/any/llama3.1_8B-BF16-pretrain.yaml --steps 4 --warmup 2 \
        --json device=cuda deterministic_mode=false seq_length=4096 micro_batch_size=2 global_batch_size=8 \
        lora.enabled=true lora.dim=16 lora.alpha=32 "lora.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]" \
        >"$scratch/ours.json" 2>"$scratch/log" || {
        failed=1
        tail -n 5 "$scratch/log"
      }
      python3 - "$scratch/ours.json" <<'ROW' || failed=1
import json, sys

ours = json.load(open(sys.argv[1]))
rate, used = ours["tokens_per_second"], ours["memory_bytes"]["device_used"] / 2**30
print(f"OURS lora: {rate:.0f} tok/s mem {used:.1f} GiB", flush=True)
ROW
      peer 1 peft_llama.py 32 4096 2 4
      ;;
    grpo)
      MODEL=qwen3_0.6B PRIMUS=$primus scripts/gpu_rollouts.sh vocab_size=151936 micro_batch_size=16 >"$scratch/ours" || failed=1
      sed 's/^/OURS grpo: /' "$scratch/ours"
      peer 3 trl_grpo.py --microbatch 64 --steps 3
      ;;
    *)
      echo "no row is called $wanted; rows: lora grpo" >&2
      exit 2
      ;;
  esac
done
exit $failed
