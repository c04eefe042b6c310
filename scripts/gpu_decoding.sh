#!/bin/sh
# Measures on one GPU of this machine how fast texts are generated and prompts are read, in bf16, with random weights.
#
#   scripts/gpu_decoding.sh [ROW]...     all rows by default
#
# generation  for each model: tokens/s of 1, 8 and 64 texts after 512 tokens, and the percentage of the rate of a copy
#             (aim: 70 %); then transformers with a model of the same dimensions (PEER=0: without it)
# prompts     tokens/s of one prompt of 512 and of 16 384 tokens, second reading, and the percentage of the rate of its
#             matrix products and attention, each timed separately in the same run (aim: 70 %)
#
# peers       only transformers
#
# Needs build/bin/primus, the plug-in next to it, and transformers 5 for the peer. MODELS chooses the models of
# generation and peers, TOKENS the number of timed steps (24). RECORDS and ENDS: see scripts/records.sh. Exits 1 if a
# measurement of Primus fails.
set -eu
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
. scripts/find_cudnn.sh
. scripts/records.sh

# measured NAME WORD...: runs benchmark decode and prints a line per result.
measured() {
  name=$1
  shift
  within 120 build/bin/primus benchmark decode --device cuda --dtype bf16 --json "$@" >"$scratch/$name.json" \
    2>"$scratch/$name.log" || {
    failed=1
    echo "FAILED  $name"
    tail -n 5 "$scratch/$name.log"
    record "$name" failed "$scratch/$name.log"
    return
  }
  record "$name" decode "$scratch/$name.json"
  python3 - "$name" "$scratch/$name.json" <<'TABLE'
import json, sys

name, report = sys.argv[1], json.load(open(sys.argv[2]))
for result in report["results"]:
    line = f"{name:20} {result['case']:26} {result['tokens_per_second']:9.0f} tokens/s"
    if "share_of_composed" in result:
        line += f", {100 * result['share_of_composed']:.1f} % of only products and attention (aim: 70 %)"
    else:
        line += f", {100 * result['share_of_copy_ceiling']:.1f} % of a copy"
    print(line, flush=True)
TABLE
}

# peer MODEL WORD...: prints the lines of the peer. A peer that does not run is no failure of Primus.
peer() {
  if ! within 200 python3 benchmarks/peers/transformers_generate.py "$@" --tokens "${TOKENS:-24}" >"$scratch/peer.txt" \
    2>"$scratch/peer.log"; then
    tail -n 2 "$scratch/peer.log" >>"$scratch/peer.txt"
  fi
  record "$1" peer_decode "$scratch/peer.txt"
  sed 's/^/  peer: /' "$scratch/peer.txt"
}

# peer_of MODEL: runs the peer with the attention that supports the model.
peer_of() {
  case $1 in
    # transformers has sinks only in its own attention.
    gpt_oss_20B) peer "$1" --attention eager ;;
    *) peer "$1" ;;
  esac
}

models=${MODELS:-llama3.1_8B qwen3_30B_A3B gpt_oss_20B deepseek_v2_lite lfm2_8B_A1B qwen3_5_35B_A3B}
[ $# -gt 0 ] || set -- generation prompts
for row; do
  case $row in
    generation)
      for model in $models; do
        measured "$model" --model "$model" --batch 1,8,64 --context 512 --tokens "${TOKENS:-24}"
        [ "${PEER:-1}" = 0 ] || peer_of "$model"
      done
      ;;
    peers)
      for model in $models; do peer_of "$model"; done
      ;;
    prompts)
      for model in llama3.1_8B qwen3_30B_A3B; do
        for length in 512 16384; do
          measured "$model-$length" --model "$model" --batch 1 --context $length --tokens 2 --warmup 1 --ceiling
        done
      done
      ;;
    *)
      echo "no row is called $row" >&2
      exit 2
      ;;
  esac
done
exit $failed
