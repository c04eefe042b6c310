#!/bin/sh
# Measures the example of reinforcement learning: a tiny model learns to add carelessly, and then to add
# exactly, by rewards.
# Prints the time of both runs on two threads of the CPU, and how many of the 100 sums the model solves with greedy
# decoding. Exits 1 if the second run solves fewer than MIN (90).
#
#   scripts/sums.sh [PRIMUS [OVERRIDE...]]    the program (build/bin/primus by default), and settings of the second run,
#                                             for example lr=5e-4
# SEED=N is the seed of both runs. STAGE=ppo takes the example of PPO as the second run.
set -eu
cd "$(dirname "$0")/.."
primus=${1:-build/bin/primus}
[ $# -eq 0 ] || shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMP_NUM_THREADS=2
configs=examples/native/configs/CPU
stage=${STAGE:-grpo}
data=examples/native/data/sums.jsonl
sed 's/, "answer".*/}/' "$data" >"$scratch/prompts.jsonl"
sed 's/.*"answer": "\([^"]*\)".*/\1/' "$data" >"$scratch/answers.txt"

# solved RUN: the number of right answers.
solved() {
  "$primus" generate "$scratch/w/u/$1" --prompts "$scratch/prompts.jsonl" -t 0 -n 4 --device cpu 2>/dev/null |
    sed 's/.*"text":"\([^"]*\)".*/\1/' >"$scratch/$1.txt"
  paste -d ' ' "$scratch/$1.txt" "$scratch/answers.txt" | awk 'NF == 2 && $1 == $2 { ++n } END { print n + 0 }'
}
# trained RUN COMMAND CONFIG OVERRIDE...
trained() {
  run=$1 command=$2 config=$3
  shift 3
  began=$(date +%s)
  "$primus" train "$command" --config "$configs/$config" workspace="$scratch" work_group=w user_name=u exp_name="$run" \
    device=cpu ${SEED:+"seed=$SEED"} "$@" >"$scratch/$run.log" 2>&1 || { tail -n 12 "$scratch/$run.log"; exit 1; }
  seconds=$(($(date +%s) - began))
  right=$(solved "$run")
  echo "train $command: $seconds s, then $right of $(wc -l <"$data") sums are right"
}
trained sums pretrain llama_tiny-sums.yaml
trained "$stage" "$stage" "llama_tiny-$stage.yaml" load="$scratch/w/u/sums" "$@"
[ "$right" -ge "${MIN:-90}" ]
