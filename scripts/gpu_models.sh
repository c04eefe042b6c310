#!/bin/sh
# Whole models on the first GPU of this machine: every reference model (logits, gradients, AdamW steps), a training run
# beside the CPU's, and generation. One line each.
#
#   scripts/gpu_models.sh [PRIMUS]     the program; build/bin/primus by default. The plug-in lies beside it in ../lib/primus
#
# DEVICE chooses another device (cuda by default). Exits 1 if something fails.
set -eu
cd "$(dirname "$0")/.."
primus=${1:-build/bin/primus}
device=${DEVICE:-cuda}
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

# The same run on both: equal but for rounding in fp32, whose sums have another order.
for on in cpu "$device"; do
  timeout 300 "$primus" train pretrain --config examples/native/configs/CPU/llama_tiny-pretrain.yaml --plain \
    workspace="$scratch" work_group=w user_name=u exp_name="$on" bf16=false train_iters=30 device="$on" \
    >"$scratch/$on.log" 2>&1 || {
    failed=1
    echo "FAILED  training on $on"
    tail -n 12 "$scratch/$on.log"
  }
  tail -n 1 "$scratch/w/u/$on/metrics.jsonl" | sed -E \
    "s/.*\"lm_loss\":([0-9.]+).*\"grad_norm\":([0-9.]+).*/training on $on: loss \1, gradient norm \2 after 30 steps/" || true
  timeout 120 "$primus" generate "$scratch/w/u/$on" --prompt "And" -n 24 --device "$on" --threads 4 \
    >"$scratch/$on.txt" 2>&1 || failed=1
done
if cmp -s "$scratch/cpu.txt" "$scratch/$device.txt"; then
  echo "ok      the same text is generated"
else
  echo "the generated texts differ:"
  head -c 300 "$scratch/cpu.txt" "$scratch/$device.txt"
fi
# Texts that are written together are those that each prompt gives alone: greedily, and with a few likeliest tokens to
# choose from, by the passes that are recorded and replayed.
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
