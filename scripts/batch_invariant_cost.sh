#!/bin/sh
# Measures the cost of batch_invariant: decoding with and without --batch-invariant, in turn, in fp32 and in bf16 (on a
# GPU only in bf16). Each report lists tokens per second for each number of texts. Weights are random.
#
#   scripts/batch_invariant_cost.sh [PRIMUS [OPTION...]]    the program (build/bin/primus by default), and options of
#                                                           'primus benchmark decode', which replace those below
# DEVICE=cuda measures on a GPU.
set -eu
cd "$(dirname "$0")/.."
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
