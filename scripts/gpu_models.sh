#!/bin/sh
# Tests complete models on the first GPU of this machine: every reference model (logits, gradients, AdamW
# steps), a training run compared with the CPU's, and generation. Prints a line per test.
#
#   scripts/gpu_models.sh [PRIMUS]     the program (build/bin/primus by default), with the plug-in in ../lib/primus
#
# DEVICE chooses another device (cuda by default), STEPS the length of the training runs (100). Exits 1 if a test fails.
set -eu
cd "$(dirname "$0")/.."
primus=${1:-build/bin/primus}
device=${DEVICE:-cuda}
steps=${STEPS:-100}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0

"$primus" device list
for model in tests/golden/models/*/; do
  for type in fp32 bf16; do
    if timeout 120 "$primus" model verify "$model" --inputs "$model/io.safetensors" --grads "$model/grads.safetensors" \
      --trajectory "$model/golden.json" --dtype $type --device "$device" >"$scratch/verify.txt" 2>&1; then
      echo "ok      $type $(basename "$model")"
    else
      failed=1
      echo "FAILED  $type $(basename "$model")"
      tail -n 12 "$scratch/verify.txt"
    fi
  done
done

# A fixed text, because the effect of rounding depends on the text.
cat LICENSE >"$scratch/text.txt"
# trained NAME DEVICE WORD...: trains a tiny fp32 model on text from the sources.
trained() {
  run_name=$1
  run_on=$2
  shift 2
  timeout 300 "$primus" train pretrain --config examples/native/configs/CPU/llama_tiny-pretrain.yaml --plain \
    workspace="$scratch" work_group=w user_name=u exp_name="$run_name" bf16=false train_iters="$steps" device="$run_on" lr=1.0e-3 \
    mock_data=false data_path="$scratch/text.txt" "$@" \
    >"$scratch/$run_name.log" 2>&1 || {
    failed=1
    echo "FAILED  training on $run_on"
    tail -n 12 "$scratch/$run_name.log"
  }
}

# curve NAME: prints each step's loss and gradient norm.
curve() {
  sed -n -E 's/.*"lm_loss":([0-9.e+-]+).*"grad_norm":([0-9.e+-]+).*/\1 \2/p' "$scratch/w/u/$1/metrics.jsonl"
}

# The runs on both devices differ only by fp32 rounding, because the order of sums differs. Training
# amplifies such differences, more on some texts than on others. CPU runs with other microbatch
# sizes, which also change only the order of sums, measure this effect. The difference between a
# device and the CPU may be up to four times as large.
# largest A B: the maximum relative difference of two curves' losses; 1 if one is incomplete.
largest() {
  paste -d ' ' "$scratch/$1.curve" "$scratch/$2.curve" | awk -v steps="$steps" '
    NF == 4 { d = ($3 - $1) / $1; d = d < 0 ? -d : d; if (d > most) most = d; ++rows }
    END { print rows == steps ? most + 0 : 1 }'
}
# beside_the_cpu NAME WHAT WORD...: compares the runs cpuNAME, cpuNAME4, cpuNAME2 and DEVICENAME.
beside_the_cpu() {
  name=$1
  what=$2
  shift 2
  for run in "cpu$name cpu 8" "$device$name $device 8" "cpu${name}4 cpu 4" "cpu${name}2 cpu 2"; do
    # shellcheck disable=SC2086
    set -- $run "$@"
    of=$1 on=$2 microbatch=$3
    shift 3
    trained "$of" "$on" micro_batch_size="$microbatch" "$@"
    curve "$of" >"$scratch/$of.curve"
    echo "$what: $of: loss and gradient norm after $steps steps: $(tail -n 1 "$scratch/$of.curve")"
  done
  difference=$(largest "cpu$name" "$device$name")
  rounding="$(largest "cpu$name" "cpu${name}4") and $(largest "cpu$name" "cpu${name}2")"
  if awk "BEGIN { split(\"$rounding\", r, \" and \"); most = r[1] > r[2] ? r[1] : r[2]
    exit !(most < 1e-3 && $difference < (most > 2.5e-6 ? 4 * most : 1e-5)) }"; then
    echo "ok      $what: $steps losses on $device are the CPU's within $difference; the CPU's own with other microbatches: $rounding"
  else
    failed=1
    echo "FAILED  $what: $steps losses on $device differ from the CPU's by up to $difference; the CPU's own with other microbatches: $rounding"
  fi
}
beside_the_cpu "" "training"
for on in cpu "$device"; do
  timeout 120 "$primus" generate "$scratch/w/u/cpu" --prompt "And" -n 24 --device "$on" --threads 4 >"$scratch/$on.txt" 2>&1 || failed=1
done
beside_the_cpu _adapters "low-rank adapters of that model" load="$scratch/w/u/cpu" lora.enabled=true lora.dim=8 lora.alpha=16 \
  "lora.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]"
# A run that is interrupted half-way and resumed must be bitwise equal to an uninterrupted run.
trained parts "$device" exit_interval=$((steps / 2))
trained parts "$device"
curve parts >"$scratch/parts.curve"
if cmp -s "$scratch/$device.curve" "$scratch/parts.curve"; then
  echo "ok      a run that was interrupted on $device is the uninterrupted one, bit for bit"
else
  failed=1
  echo "FAILED  a run that was interrupted on $device differs: $(tail -n 1 "$scratch/parts.curve")"
fi
if cmp -s "$scratch/cpu.txt" "$scratch/$device.txt"; then
  echo "ok      the same text is generated"
else
  failed=1
  echo "FAILED  the generated texts differ:"
  head -c 300 "$scratch/cpu.txt" "$scratch/$device.txt"
fi
# Batched generation must give the same texts as generation for each prompt separately: greedily, and with small top-k
# sampling, with recorded and replayed passes.
cat >"$scratch/prompts.jsonl" <<PROMPTS
"And"
"The king"
"I"
"What is it that you"
"No"
PROMPTS
for sampling in "--temperature 0" "--temperature 0.7 --top-k 20"; do
  for together in 1 4; do
    # shellcheck disable=SC2086
    timeout 120 "$primus" generate "$scratch/w/u/cpu" --prompts "$scratch/prompts.jsonl" --batch $together -n 24 $sampling \
      --device "$device" --threads 4 2>"$scratch/batch.log" | sed -E 's/"(prompt_)?seconds":[^,}]*//g' >"$scratch/batch$together.jsonl" || {
      failed=1
      cat "$scratch/batch.log"
    }
  done
  if [ -s "$scratch/batch1.jsonl" ] && cmp -s "$scratch/batch1.jsonl" "$scratch/batch4.jsonl"; then
    echo "ok      texts written together are those written alone ($sampling)"
  else
    failed=1
    echo "FAILED  texts written together differ ($sampling)"
    head -c 600 "$scratch/batch1.jsonl" "$scratch/batch4.jsonl"
  fi
done
exit $failed
