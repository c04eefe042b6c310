#!/bin/sh
# Compares training with graph replay (enable_cuda_graph) to training kernel by kernel, on the first GPU of
# this machine. Prints a line per row: bitwise equal losses, rates, memory, and host time.
#
#   scripts/gpu_graphs.sh [ROW]...     all rows by default
#
# dense, mixture, moments      300 steps of tiny models on text, with evaluations, samples and checkpoints in between,
#           and interrupted and resumed: all losses and gradient norms are bitwise equal. moments: also AdamW's moments in bf16
# tiny      rates of llama_tiny, whose kernels are shorter than the host's launch time
# small     rates of Qwen2.5-0.5B's shape, sequence 4096
# large     rates of Llama-3-8B's dimensions in 16 layers, sequence 8192
#
# Rates are measured by `primus benchmark train`, alternating without and with graphs. Needs build/bin/primus
# and the plug-in next to it. DEVICE selects another device (cuda), STEPS the steps of tiny models (300),
# TIMED the timed steps (8), TURNS the number of repetitions (2). Exits 1 if a number differs or a step is not
# replayed.
set -eu
cd "$(dirname "$0")/.."
primus=build/bin/primus
device=${DEVICE:-cuda}
steps=${STEPS:-300}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
tiny=examples/native/configs/CPU/llama_tiny-pretrain.yaml
any=examples/native/configs/any

cp docs/config.md "$scratch/text.txt"
# trained NAME WORD...: trains; fails if the run fails.
trained() {
  name=$1
  shift
  timeout 400 "$primus" train pretrain --config $tiny --plain workspace="$scratch" work_group=w user_name=u exp_name="$name" \
    train_iters="$steps" device="$device" mock_data=false data_path="$scratch/text.txt" split=90,10,0 \
    eval_interval=$((steps / 4)) eval_iters=2 sample_interval=$((steps / 5)) save_interval=$((steps / 3)) async_save=true \
    "$@" >"$scratch/$name.log" 2>&1 || {
    failed=1
    echo "FAILED  $name"
    tail -n 12 "$scratch/$name.log"
    return 1
  }
}

# curve NAME: prints each step's loss and gradient norm.
curve() {
  sed -n -E 's/.*"lm_loss":([0-9.e+-]+).*"grad_norm":([0-9.e+-]+).*/\1 \2/p' "$scratch/w/u/$1/metrics.jsonl"
}

# bits NAME WORD...: compares runs without graphs, with graphs, and with graphs but interrupted and resumed.
bits() {
  row=$1
  shift
  trained "$row-plain" "$@" || return 0
  trained "$row-graphs" "$@" enable_cuda_graph=true || return 0
  trained "$row-parts" "$@" enable_cuda_graph=true exit_interval=$((steps / 2)) || return 0
  trained "$row-parts" "$@" enable_cuda_graph=true || return 0
  for run in plain graphs parts; do curve "$row-$run" >"$scratch/$row-$run.curve"; done
  replayed=$(sed -n -E 's/.*graphs: ([0-9]+) steps replayed.*/\1/p' "$scratch/$row-graphs.log")
  problem=
  [ "$(wc -l <"$scratch/$row-plain.curve")" = "$steps" ] || problem="not all steps have a loss"
  cmp -s "$scratch/$row-plain.curve" "$scratch/$row-graphs.curve" || problem="losses or norms differ"
  cmp -s "$scratch/$row-plain.curve" "$scratch/$row-parts.curve" || problem="interrupted and continued, they differ"
  # Three steps are warm-up, and one step is recorded.
  [ "${replayed:-0}" = $((steps - 4)) ] || problem="${replayed:-no} steps were replayed, not $((steps - 4))"
  if [ -z "$problem" ]; then
    echo "ok      $row: $steps losses and norms bit for bit, $replayed steps replayed"
  else
    failed=1
    echo "FAILED  $row: $problem"
    grep -h 'enable_cuda_graph' "$scratch/$row-graphs.log" || true
  fi
}

# rate NAME CONFIG WORD...: times training without and with graphs, in turn.
rate() {
  row=$1
  config=$2
  shift 2
  for turn in $(seq "${TURNS:-2}"); do
    for graphs in false true; do
      timeout 200 "$primus" benchmark train --config "$config" --steps "${TIMED:-8}" --warmup 4 --json device="$device" \
        enable_cuda_graph=$graphs "$@" >"$scratch/$row.$graphs.$turn.json" 2>"$scratch/$row.log" || {
        failed=1
        echo "FAILED  $row"
        tail -n 5 "$scratch/$row.log"
        return 0
      }
    done
  done
  python3 - "$row" "$scratch" <<'TABLE' || failed=1
import glob, json, sys

row, folder = sys.argv[1:]
runs = {
    graphs: [json.load(open(name)) for name in sorted(glob.glob(f"{folder}/{row}.{graphs}.*.json"))]
    for graphs in ("false", "true")
}
plain, graphs = runs["false"], runs["true"]
losses = {run["loss"] for run in plain + graphs}
replayed = all(run["replayed_steps"] >= run["steps"] for run in graphs)


def best(all_runs):
    return max(run["tokens_per_second"] for run in all_runs)


def used(all_runs):
    return max(run["memory_bytes"]["device_used"] for run in all_runs) / 2**20


def enqueued(all_runs):
    return 1e3 * min(run["enqueue_seconds"] for run in all_runs)


ok = len(losses) == 1 and replayed
print(
    f"{'ok     ' if ok else 'FAILED '} {row}: {best(graphs):.0f} tokens/s with graphs, {best(plain):.0f} without: "
    f"{best(graphs) / best(plain):.4f} | to enqueue a microbatch {enqueued(graphs):.2f} ms, {enqueued(plain):.2f} ms | "
    f"device memory {used(graphs):.0f} MiB, {used(plain):.0f} MiB"
    + ("" if len(losses) == 1 else f" | losses differ: {sorted(losses)}")
    + ("" if replayed else " | not all steps were replayed"),
    flush=True,
)
sys.exit(not ok)
TABLE
}

bf16="exp_avg_dtype=bf16 exp_avg_sq_dtype=bf16 main_grads_dtype=bf16"
mixture="model_type=mixtral num_experts=4 moe_router_topk=2 ffn_hidden_size=256 num_attention_heads=4 num_query_groups=4"
[ $# -gt 0 ] || set -- dense mixture moments tiny small large
for wanted; do
  # Settings are separate words.
  # shellcheck disable=SC2086
  case $wanted in
    dense) bits dense bf16=false ;;
    mixture) bits mixture bf16=false $mixture ;;
    moments) bits moments $bf16 ;;
    tiny) rate tiny $tiny ;;
    small)
      rate small $any/qwen2.5_3B-BF16-pretrain.yaml model=qwen2.5_0.5B.yaml seq_length=4096 micro_batch_size=4 \
        global_batch_size=16 $bf16
      ;;
    large)
      rate large $any/llama3_8B-BF16-pretrain.yaml num_layers=16 micro_batch_size=1 seq_length=8192 global_batch_size=4 $bf16
      ;;
    *)
      echo "no row is called $wanted" >&2
      exit 2
      ;;
  esac
done
exit $failed
