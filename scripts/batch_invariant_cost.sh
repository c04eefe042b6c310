#!/bin/sh
# Measures the cost of batch_invariant: decoding with and without --batch-invariant, in turn, in fp32 and in bf16 (on a
# GPU only in bf16). Each report lists tokens per second for each number of texts. Weights are random.
#
#   scripts/batch_invariant_cost.sh [PRIMUS [OPTION...]]    the program (build/bin/primus by default), and options of
#                                                           'primus benchmark decode', which replace those below
# DEVICE=cuda measures on a GPU.
#
#   GPUS=2 scripts/batch_invariant_cost.sh [MESH]...        on meshes of two GPUs: tensor expert pipeline
#
# With GPUS above 1, measures steps of GRPO instead (scripts/gpu_rollouts.sh), and prints the times of generation and of
# learning, with the setting divided by without it. DENSE is the model of tensor and pipeline ranks (llama3.1_8B), EXPERTS the
# model of expert ranks (qwen3_30B_A3B), LAYERS their number of layers (8), and STEPS the number of steps (4), of which the
# first does not count. Answers end at random, so the generation is compared by its tokens per second.
set -eu
cd "$(dirname "$0")/.."

# step_times INVARIANT MODEL SETTING...: prints tokens per second of generation and milliseconds of learning, as medians
# over the steps after the first.
step_times() {
  invariant=$1 model=$2
  shift 2
  MODEL=$model STEPS=${STEPS:-4} scripts/gpu_rollouts.sh --nproc "$GPUS" "num_layers=${LAYERS:-8}" "batch_invariant=$invariant" \
    "$@" >"$scratch/steps" || {
    cat "$scratch/steps" >&2
    exit 1
  }
  python3 - "$scratch/steps" <<'MEDIANS'
import re, statistics, sys

rows = open(sys.argv[1]).read().splitlines()[1:]
for name in (r"rollout/tokens_per_second", r"elapsed time per iteration .ms."):
    print(statistics.median(float(re.search(name + r": ([0-9.E+-]+)", row)[1]) for row in rows), end=" ")
MEDIANS
}

if [ "${GPUS:-1}" -gt 1 ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  [ $# -gt 0 ] || set -- tensor expert pipeline
  for mesh; do
    case $mesh in
      tensor | pipeline)
        model=${DENSE:-llama3.1_8B}
        shared=${mesh}_model_parallel_size=$GPUS
        ;;
      expert)
        model=${EXPERTS:-qwen3_30B_A3B}
        shared=expert_model_parallel_size=$GPUS
        ;;
      *)
        echo "no mesh is called $mesh; meshes: tensor expert pipeline" >&2
        exit 2
        ;;
    esac
    fast=$(step_times false "$model" "$shared")
    same=$(step_times true "$model" "$shared")
    echo "$fast $same" | awk -v name="$mesh $GPUS, $model" '{
      printf "%s: generation %.0f and %.0f tokens/s, cost %.3f; learning %.0f and %.0f ms, cost %.3f (aim: 1.10)\n",
        name, $1, $3, $1 / $3, $2, $4, $4 / $2
    }'
  done
  exit 0
fi
primus=${1:-build/bin/primus}
device=${DEVICE:-cpu}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- --model qwen3_0.6B --batch 1,8,32 --context 128 --tokens 16
case $device in
  cpu) types="fp32 bf16" ;;
  *) types=bf16 ;;
esac
for dtype in $types; do
  echo "$dtype (fastest kernels)"
  "$primus" benchmark decode --device "$device" --dtype "$dtype" "$@"
  echo "$dtype --batch-invariant"
  "$primus" benchmark decode --device "$device" --dtype "$dtype" --batch-invariant "$@"
done
