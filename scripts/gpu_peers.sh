#!/bin/sh
# Compares training on one GPU of this machine with PyTorch: same model, tokens and precision, one after the
# other in this run. Prints a line per row: both rates, their ratio, both memory peaks, and our share of the
# ceiling: the rate of a step that consists only of the model's products, attention and delta rules, each timed
# separately in the same run (benchmark train --ceiling).
#
#   scripts/gpu_peers.sh [FOLDER] [ROW]...     all rows by default
#
# FOLDER contains replacements for benchmarks/peers.
#
# bf16      Llama-3-8B's dimensions in 16 layers, sequence 8192: bf16 weights, gradients and moments; our run also has
#           master weights exact to fp32
# amp       like bf16, with fp32 master weights, gradients and moments
# lean      like amp, but our run has bf16 gradients and recomputes each layer's norms and MLP activation
# short, long, heads, groups      bf16 at sequences of 2048 and 32768, with 32 heads of 64, with 8 queries per key
# small     Qwen2.5-0.5B's shape at sequence 4096
# adapters  Llama-3-8B's dimensions in 16 layers, all frozen in bf16, with LoRA of rank 16 on each block's products
# whole     Llama-3.1-8B, all 32 layers, sequence 8192
# moe, moe4       6 layers of Qwen3-30B-A3B at sequence 4096: microbatches of 2 and of 4 sequences, 8 per step
# mixtral   2 layers of Mixtral 8x7B at sequence 4096
# gptoss, deepseek, qwen35, kimi      without a peer: 4 layers of gpt-oss 20B; 3 layers of DeepSeek-V3's dimensions
#           with 32 experts; 4 layers of Qwen3.5-35B-A3B and of Kimi Linear 48B-A3B, each with 64 experts
#
# Needs build/bin/primus, the plug-in next to it, and PyTorch for the peer. STEPS sets the number of timed steps (4 here, 6
# of the peer). WARM=1 runs only the peers, briefly, to fill PyTorch's cache of compiled code. RECORDS and ENDS: see
# scripts/records.sh. Exits 1 if a row fails.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
peers=$root/benchmarks/peers
if [ -e "${1:-}/torch_llama.py" ]; then
  peers=$(cd "$1" && pwd)
  shift
fi
cd "$root"
primus=build/bin/primus
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
. scripts/find_cudnn.sh
. scripts/records.sh

# row NAME CONFIG WORDS -- DIMENSIONS ARGUMENTS: runs a row with our settings and with the settings of the peer script
# $script. DIMENSIONS "none": there is no peer.
script=torch_llama.py
row() {
  name=$1
  config=examples/native/configs/any/$2-BF16-pretrain.yaml
  shift 2
  words=
  while [ "$1" != -- ]; do
    words="$words $1"
    shift
  done
  dimensions=$2
  shift 2
  if [ -n "${WARM:-}" ]; then
    # shellcheck disable=SC2086
    DIMS=$dimensions timeout 150 python3 "$peers/$script" "$@" 1 --steps 1 || failed=1
    return
  fi
  # shellcheck disable=SC2086
  within 120 "$primus" benchmark train --config "$config" --steps "${STEPS:-4}" --warmup 2 --ceiling --json device=cuda \
    deterministic_mode=false $words >"$scratch/$name.json" 2>"$scratch/$name.log" || {
    failed=1
    echo "FAILED  $name"
    tail -n 5 "$scratch/$name.log"
    record "$name" failed "$scratch/$name.log"
    return
  }
  record "$name" train "$scratch/$name.json"
  # The forecast of the memory needs no GPU.
  # shellcheck disable=SC2086
  if [ -n "${RECORDS:-}" ] && within 30 "$primus" train pretrain --config "$config" --dry-run --json --hardware \
    "${HARDWARE:-h100}" --world 1 deterministic_mode=false $words >"$scratch/$name.plan" 2>"$scratch/$name.log"; then
    record "$name" forecast "$scratch/$name.plan"
  fi
  # Rows with equal peer settings share the peer's result.
  peer=$scratch/$(echo "$script $dimensions $*" | tr ' ,' '__').peer
  [ "$dimensions" != none ] || echo none >"$peer"
  # shellcheck disable=SC2086
  [ -e "$peer" ] || DIMS=$dimensions within 150 python3 "$peers/$script" "$@" 1 ${STEPS:+--steps $STEPS} >"$peer" 2>&1 || true
  [ "$dimensions" = none ] || record "$name" peer "$peer"
  grep -q 'tok/s\|^none$' "$peer" || failed=1
  python3 - "$name" "$scratch/$name.json" "$peer" <<'TABLE'
import json, re, sys

name, ours, peer = sys.argv[1], json.load(open(sys.argv[2])), open(sys.argv[3]).read()
memory = ours["memory_bytes"]
planned = memory["persistent"] + memory["stash"] + memory["scratch"]
line = (
    f"{name:8} ours {ours['tokens_per_second']:8.0f} tokens/s {ours['model_flops_per_second'] / 1e12:6.1f} TFLOP/s "
    f"{planned / 2**30:6.1f} GiB planned, {memory['device_used'] / 2**30:.1f} used | {100 * ours['ceiling']['share']:.1f} % of "
    f"{ours['ceiling']['model_flops_per_second'] / 1e12:.1f} composed"
)
found = re.search(r": (\d+) tok/s ([\d.]+) TFLOP/s mem ([\d.]+)", peer)
if found:
    rate, flops, used = (float(group) for group in found.groups())
    line += (
        f" | peer {rate:8.0f} tokens/s {flops:6.1f} TFLOP/s {used:6.1f} GiB"
        f" | {ours['tokens_per_second'] / rate:.3f} of its rate, {planned / 2**30 / used:.2f} of its memory"
    )
elif peer.strip() != "none":
    line += " | peer: " + (peer.strip().splitlines() or ["nothing"])[-1][:100]
print(line, flush=True)
TABLE
}

bf16="exp_avg_dtype=bf16 exp_avg_sq_dtype=bf16 main_grads_dtype=bf16"
llama="num_layers=16 micro_batch_size=1"
eight="4096,14336,32,8,128256"
[ $# -gt 0 ] || set -- bf16 amp lean short long heads groups small adapters whole moe moe4 mixtral gptoss deepseek \
  qwen35 kimi
for wanted; do
  case $wanted in
    moe* | mixtral) script=torch_moe.py ;;
    *) script=torch_llama.py ;;
  esac
  # Settings are separate words.
  # shellcheck disable=SC2086
  case $wanted in
    bf16) row bf16 llama3_8B $llama seq_length=8192 global_batch_size=4 $bf16 -- $eight 16 8192 1 4 bf16 ;;
    amp) row amp llama3_8B $llama seq_length=8192 global_batch_size=4 -- $eight 16 8192 1 4 amp ;;
    lean)
      row lean llama3_8B $llama seq_length=8192 global_batch_size=4 main_grads_dtype=bf16 \
        recompute_granularity=selective "recompute_modules=[layernorm,mlp]" -- $eight 16 8192 1 4 amp
      ;;
    short)
      row short llama3_8B num_layers=16 micro_batch_size=4 seq_length=2048 global_batch_size=16 $bf16 -- \
        $eight 16 2048 4 4 bf16
      ;;
    long) row long llama3_8B $llama seq_length=32768 global_batch_size=1 $bf16 -- $eight 16 32768 1 1 bf16 ;;
    heads)
      row heads llama3.2_1B seq_length=8192 micro_batch_size=2 global_batch_size=8 $bf16 -- \
        2048,8192,32,8,128256 16 8192 2 4 bf16
      ;;
    groups)
      row groups llama3_8B $llama seq_length=8192 global_batch_size=4 num_query_groups=4 $bf16 -- \
        4096,14336,32,4,128256 16 8192 1 4 bf16
      ;;
    small)
      row small qwen2.5_3B model=qwen2.5_0.5B.yaml seq_length=4096 micro_batch_size=4 global_batch_size=16 \
        $bf16 -- 896,4864,14,2,151936 24 4096 4 4 bf16
      ;;
    adapters)
      row adapters llama3_8B $llama seq_length=8192 global_batch_size=4 lora.enabled=true lora.dim=16 lora.alpha=32 \
        "lora.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]" -- $eight 16 8192 1 4 bf16 --adapters 16
      ;;
    whole)
      row whole llama3.1_8B seq_length=8192 micro_batch_size=1 global_batch_size=4 $bf16 -- $eight 32 8192 1 4 bf16
      ;;
    moe)
      row moe qwen3_30B_A3B num_layers=6 seq_length=4096 micro_batch_size=2 global_batch_size=8 $bf16 -- \
        2048,768,32,4,151936,128,128,8 6 4096 2 4 bf16
      ;;
    moe4)
      row moe4 qwen3_30B_A3B num_layers=6 seq_length=4096 micro_batch_size=4 global_batch_size=8 $bf16 -- \
        2048,768,32,4,151936,128,128,8 6 4096 4 2 bf16
      ;;
    mixtral)
      row mixtral mixtral_8x7B_v0.1 num_layers=2 seq_length=4096 micro_batch_size=2 global_batch_size=8 $bf16 -- \
        4096,14336,32,8,32000,128,8,2 2 4096 2 4 bf16
      ;;
    gptoss)
      row gptoss gpt_oss_20B num_layers=4 seq_length=4096 micro_batch_size=2 global_batch_size=8 $bf16 -- none
      ;;
    deepseek)
      row deepseek deepseek_v3 num_layers=3 "moe_layer_freq=([0]*1+[1]*2)" num_experts=32 mtp_num_layers=0 \
        seq_length=4096 micro_batch_size=2 global_batch_size=8 $bf16 -- none
      ;;
    qwen35)
      row qwen35 qwen3_5_35B_A3B num_layers=4 num_experts=64 seq_length=8192 micro_batch_size=1 global_batch_size=4 \
        $bf16 -- none
      ;;
    kimi)
      row kimi qwen3_30B_A3B model=kimi_linear_48B_A3B.yaml num_layers=4 "linear_attention_freq=([1]*3+[0]*1)" \
        "moe_layer_freq=([0]*1+[1]*3)" num_experts=64 seq_length=8192 micro_batch_size=1 global_batch_size=4 $bf16 -- none
      ;;
    *)
      echo "no row is called $wanted" >&2
      exit 2
      ;;
  esac
done
exit $failed
