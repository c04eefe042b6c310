#!/bin/sh
# Measures the cost of batch_invariant on the CPU: decoding with and without --batch-invariant, in turn, in fp32 and in
# bf16. Each report lists tokens per second for each number of texts. Weights are random.
#
#   scripts/batch_invariant_cost.sh [PRIMUS [OPTION...]]    the program (build/bin/primus by default), and options of
#                                                           'primus benchmark decode', which replace those below
set -eu
cd "$(dirname "$0")/.."
primus=${1:-build/bin/primus}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- --model qwen3_0.6B --batch 1,8,32 --context 128 --tokens 16
for dtype in fp32 bf16; do
  echo "$dtype (fastest kernels)"
  "$primus" benchmark decode --device cpu --dtype "$dtype" "$@"
  echo "$dtype --batch-invariant"
  "$primus" benchmark decode --device cpu --dtype "$dtype" --batch-invariant "$@"
done
