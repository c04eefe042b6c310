#!/bin/sh
# Measures the cost of batch_invariant on the CPU: decoding with and without --batch-invariant, in turn, in fp32 and in
# bf16. Each report lists tokens per second for each number of texts. Weights are random.
#
#   scripts/batch_invariant_cost.sh [PRIMUS [OPTION...]]    the program (build/bin/primus by default), and options of
#                                                           'primus benchmark decode', for example --batch 1,64
set -eu
cd "$(dirname "$0")/.."
primus=${1:-build/bin/primus}
[ $# -eq 0 ] || shift
for dtype in fp32 bf16; do
  for invariant in '' --batch-invariant; do
    echo "$dtype ${invariant:-(fastest kernels)}"
    # shellcheck disable=SC2086  # no option if empty
    "$primus" benchmark decode --device cpu --dtype "$dtype" --model qwen3_0.6B --batch 1,8,32 --context 128 --tokens 16 \
      $invariant "$@"
  done
done
