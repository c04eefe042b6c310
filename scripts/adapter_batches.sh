#!/bin/sh
# Measures decoding of texts of several adapters (docs/posttrain.md, Several adapters on one base): in one batch, and with
# one adapter after another. A batch of all texts with one adapter is the limit. Weights are random. The three cases run in
# turn, in ROUNDS rounds (3). A line has the rate in tokens/s of each round.
#
#   scripts/adapter_batches.sh [PRIMUS [OPTION...]]    the program (build/bin/primus by default), and options of
#                                                      'primus benchmark decode', which replace those below
# TEXTS (8) is the number of texts, ADAPTERS (4) that of adapters, which divides it, and RANK (16) their rank. DEVICE=cuda
# measures on a GPU.
set -eu
cd "$(dirname "$0")/.."

texts=${TEXTS:-8} adapters=${ADAPTERS:-4}
[ $((texts % adapters)) -eq 0 ] || {
  echo "ADAPTERS ($adapters) does not divide TEXTS ($texts)" >&2
  exit 2
}
primus=${1:-build/bin/primus}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- --model qwen3_0.6B --dtype bf16 --context 32 --tokens 16
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# rate NAME WORD...: appends the rate of a case to its line.
rate() {
  name=$1
  shift
  "$primus" benchmark decode --device "${DEVICE:-cpu}" --lora-rank "${RANK:-16}" --json "$@" >"$scratch/report" 2>"$scratch/log" || {
    cat "$scratch/log" >&2
    exit 1
  }
  sed -n 's/.*"tokens_per_second": *\([0-9.e+]*\).*/ \1/p' "$scratch/report" | xargs printf ' %.1f' >>"$scratch/$name"
}

round=0
while [ $round -lt "${ROUNDS:-3}" ]; do
  round=$((round + 1))
  rate turns --batch $((texts / adapters)) "$@"
  rate mixed --batch "$texts" --adapters "$adapters" "$@"
  rate single --batch "$texts" "$@"
done
echo "$texts texts of $adapters adapters, one adapter after another:$(cat "$scratch/turns")"
echo "$texts texts of $adapters adapters in one batch:$(cat "$scratch/mixed")"
echo "$texts texts of one adapter in one batch:$(cat "$scratch/single")"
