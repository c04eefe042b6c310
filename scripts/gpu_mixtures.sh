#!/bin/sh
# Measures the table of mixtures of experts in docs/performance.md in one go. The peers are PyTorch for training,
# flash-linear-attention for delta rules, and transformers for generation. Prompts, grouped products and routers have no
# peer. GPUS=2 measures expert parallelism. At the end, prints the measured rows with aims and predictions.
#
#   scripts/gpu_mixtures.sh [FOLDER] [PART]...     build/gpu/check and all parts by default
#
# Parts in this order, with seconds on one H100 (2026-11-28):
#   train 300     rows of gpu_peers.sh: moe moe4 mixtral gptoss deepseek qwen35 kimi
#   delta 50      gpu_bench --delta, and benchmarks/peers/fla_delta_rule.py
#   decoding 20   generation of gpu_decoding.sh, without the peer
#   prompts 25    prompts of gpu_decoding.sh
#   experts 10    gpu_bench --experts, which also measures routers
#   peers 190     transformers
# GPUS=2 has one part:
#   margins 300   the row of gpu_ranks.sh (an estimate)
#
# FOLDER/mixtures.jsonl gets each result as soon as it is measured, so results remain if the run is cut off. After LIMIT
# seconds (540), nothing is started or continued; the table then shows what was not run. A later call with the missing
# parts adds to the same file. WARM=1 only compiles the peers of training, which fills PyTorch's cache of compiled code
# and shortens `train` later. It may run while the plug-in is built.
#
# When all parts ran, add FOLDER/mixtures.jsonl to benchmarks/mixtures/results.jsonl, and run scripts/mixture_table.py
# update.
#
# Needs build/bin/primus, the plug-in next to it, and gpu_bench (BENCH, build/bin/gpu_bench by default). The table names
# a peer that is not installed. Exits 1 if a result is missing.
set -eu
out=${1:-build/gpu/check}
[ $# = 0 ] || shift
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
bench=${BENCH:-build/bin/gpu_bench}
began=$(date +%s)
RECORDS=$out/mixtures.jsonl
ENDS=$((began + ${LIMIT:-540}))
export RECORDS ENDS
unset LIMIT  # gpu_ranks.sh has one of its own
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
. scripts/find_cudnn.sh
. scripts/records.sh

if [ "${GPUS:-1}" -gt 1 ]; then
  [ $# -gt 0 ] || set -- margins
else
  [ $# -gt 0 ] || set -- train delta decoding prompts experts peers
fi
if [ -n "${WARM:-}" ]; then
  WARM=1 scripts/gpu_peers.sh moe moe4 mixtral
  exit 0
fi
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >"$scratch/machine" 2>/dev/null ||
  echo unknown >"$scratch/machine"
record machine machine "$scratch/machine"

# benched ROW ARGUMENT: runs gpu_bench with this argument.
benched() {
  within 90 "$bench" "$PWD/build/lib/primus/libprimus_cuda.so" --json "$2" >"$scratch/bench" 2>"$scratch/log" ||
    record "$1" failed "$scratch/log"
  record "$1" bench "$scratch/bench"
}

mixtures="qwen3_30B_A3B gpt_oss_20B deepseek_v2_lite lfm2_8B_A1B qwen3_5_35B_A3B"
for part; do
  start=$(date +%s)
  case $part in
    train) STEPS=4 scripts/gpu_peers.sh moe moe4 mixtral gptoss deepseek qwen35 kimi || true ;;
    delta)
      benched delta --delta
      within 90 python3 benchmarks/peers/fla_delta_rule.py >"$scratch/peer" 2>&1 || true
      record delta peer_delta "$scratch/peer"
      ;;
    decoding) PEER=0 MODELS=$mixtures scripts/gpu_decoding.sh generation || true ;;
    prompts) scripts/gpu_decoding.sh prompts || true ;;
    experts) benched experts --experts ;;
    # A step of transformers takes the same time with any number of texts, and its times vary little.
    peers) TOKENS=8 MODELS=$mixtures scripts/gpu_decoding.sh peers || true ;;
    margins) ROWS=margins scripts/gpu_ranks.sh "${GPUS:-1}" || true ;;
    *)
      echo "no part is called $part" >&2
      exit 2
      ;;
  esac
  echo "($part: $(($(date +%s) - start)) s)"
done
scripts/mixture_table.py table --parts "$*" "$RECORDS"
