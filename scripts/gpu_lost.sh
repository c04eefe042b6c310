#!/bin/sh
# Tests the loss of a GPU during a run: at some kernel, all driver calls begin to fail (tests/device/lost_gpu.cpp). The
# run must end immediately with an error that names the cause, saved checkpoints must be intact, and the next start must
# resume from them. After several losses of the GPU, all losses must be bitwise equal to those of an undisturbed run.
#
#   scripts/gpu_lost.sh [PRIMUS]     the program; build/bin/primus by default
#
# Needs build/tests/liblost_gpu.so (-DPRIMUS_TESTS=ON). Exits 1 if a check fails.
set -eu
cd "$(dirname "$0")/.."
primus=${1:-build/bin/primus}
shim=$PWD/build/tests/liblost_gpu.so
steps=120
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp docs/config.md "$scratch/text.txt"

# trained NAME [VARIABLE=VALUE]...: trains, and prints the run's exit code; messages go to NAME.log.
trained() {
  name=$1
  shift
  code=0
  env LD_PRELOAD="$shim" "$@" timeout 60 "$primus" train pretrain --config examples/native/configs/CPU/llama_tiny-pretrain.yaml \
    --plain workspace="$scratch" work_group=w user_name=u exp_name="$name" train_iters=$steps save_interval=7 device=cuda lr=1.0e-3 \
    mock_data=false data_path="$scratch/text.txt" >"$scratch/$name.log" 2>&1 || code=$?
  echo $code
}
curve() {
  sed -n -E 's/.*"iteration":([0-9]+).*"lm_loss":([0-9.e+-]+).*"grad_norm":([0-9.e+-]+).*/\1 \2 \3/p' "$scratch/w/u/$1/metrics.jsonl" | sort -n -u
}
fail() {
  echo "FAILED  $1"
  tail -n 8 "$2"
  exit 1
}

[ "$(trained whole PRIMUS_LOSE_GPU_COUNT="$scratch/count")" = 0 ] || fail "training" "$scratch/whole.log"
launches=$(cat "$scratch/count" 2>/dev/null || echo 0)
[ "$launches" -gt $steps ] || fail "the driver's calls were not seen: nothing is tested" "$scratch/whole.log"

# Each part is a quarter to a third of the run. Each time, the GPU is lost during a step, with another driver error.
for with in 999 719 46; do
  began=$(date +%s)
  code=$(trained parts PRIMUS_LOSE_GPU_AFTER=$((launches * 3 / 10)) PRIMUS_LOSE_GPU_WITH=$with)
  took=$(($(date +%s) - began))
  # 124: it timed out; above 127: it crashed.
  { [ "$code" != 0 ] && [ "$code" -lt 124 ]; } || fail "a lost GPU (error $with) ended the run with code $code" "$scratch/parts.log"
  grep -q 'the GPU may have been lost' "$scratch/parts.log" || fail "the message does not name the lost GPU (error $with)" "$scratch/parts.log"
  echo "ok      a GPU is lost (the driver's error $with): code $code after $took s: $(grep -m 1 'error' "$scratch/parts.log" | cut -c 1-160)"
done
[ "$(trained parts)" = 0 ] || fail "going on after it" "$scratch/parts.log"
curve whole >"$scratch/whole.curve"
curve parts >"$scratch/parts.curve"
[ "$(wc -l <"$scratch/whole.curve")" = $steps ] || fail "the whole run's curve is not whole" "$scratch/whole.curve"
if cmp -s "$scratch/whole.curve" "$scratch/parts.curve"; then
  echo "ok      three times lost, the run is the one that nothing happened to, bit for bit ($steps steps, $launches launches)"
else
  diff "$scratch/whole.curve" "$scratch/parts.curve" >"$scratch/diff" || true
  fail "a run that lost its GPU differs" "$scratch/diff"
fi
