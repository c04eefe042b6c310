#!/bin/sh
# Measures reinforcement learning on one GPU, or on several by --nproc: GRPO of a model with random weights and LoRA
# adapters of rank 16. Prints, for each step: milliseconds of learning, the mean length of an answer, and tokens per
# second and seconds of the generation of answers.
#
#   scripts/gpu_rollouts.sh [OPTION]... [KEY=VALUE]...     options of 'primus train grpo', such as --nproc 2, and keys of
#                                                          the experiment, such as global_batch_size=256
#
# Answers of random weights end with probability 1/257 per token, so that few texts are left when the longest
# answers end. At most 256 texts are generated at a time; with more answers per step, other prompts take the places of
# ended texts.
#
# Needs build/bin/primus and the plug-in next to it. MODEL sets the preset (llama3.1_8B), PROMPT the number of bytes that
# are added to each prompt (0), STEPS the number of steps (3), LIMIT the seconds after which the run is ended (300), and
# PRIMUS another program. Exits 1 if the run ends before the last step.
set -eu
cd "$(dirname "$0")/.."
primus=${PRIMUS:-build/bin/primus}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
. scripts/find_cudnn.sh
. scripts/find_nccl.sh

added=$(awk -v n="${PROMPT:-0}" 'BEGIN { for (i = 0; i < n; ++i) printf "%c", 97 + i % 23 }')
i=0
while [ "$i" -lt 256 ]; do
  echo "{\"prompt\": \"${added}Compute $i+$((i + 1))=\", \"answer\": \"$((i + i + 1))\"}"
  i=$((i + 1))
done >"$scratch/prompts.jsonl"
cat >"$scratch/grpo.yaml" <<YAML
work_group: local
user_name: gpu
exp_name: rollouts
workspace: $scratch/output
modules:
  post_trainer:
    framework: native
    config: grpo_trainer.yaml
    model: ${MODEL:-llama3.1_8B}.yaml
    overrides:
      tokenizer_type: ByteTokenizer
      vocab_size: 128256
      sft_dataset_name: $scratch/prompts.jsonl
      sft_conversation_format: none
      reward: [exact:answer]
      log_interval: 1
      save_interval: 100000
      train_iters: 1000000
      lr: 1.0e-5
      seq_length: 512
      global_batch_size: 64
      num_generations: 8
      max_completion_length: 256
      lora: {enabled: true, dim: 16, alpha: 32, target_modules: [linear_qkv, linear_proj, linear_fc1, linear_fc2]}
YAML
# The run is ended after the last step, so it writes no checkpoint.
"$primus" train grpo --config "$scratch/grpo.yaml" --plain device=cuda "$@" >"$scratch/log" 2>&1 &
run=$!
begin=$(date +%s)
steps() {
  grep -cE 'iteration +[0-9]+/' "$scratch/log" || true
}
while kill -0 "$run" 2>/dev/null; do
  if [ "$(steps)" -ge "${STEPS:-3}" ] || [ $(($(date +%s) - begin)) -gt "${LIMIT:-300}" ]; then kill -9 "$run"; fi
  sleep 0.5
done
wait "$run" 2>/dev/null || true
grep -E 'iteration +[0-9]+/' "$scratch/log" | head -n "${STEPS:-3}" | awk '{
  match($0, /iteration +[0-9]+/)
  out = substr($0, RSTART, RLENGTH)
  split("elapsed time per iteration .ms.|completions/mean_length|rollout/tokens_per_second|rollout/seconds", names, "|")
  for (i = 1; i <= 4; ++i)
    if (match($0, names[i] ": [0-9.E+-]+")) out = out ", " substr($0, RSTART, RLENGTH)
  print out
}'
if [ "$(steps)" -lt "${STEPS:-3}" ]; then
  tail -n 20 "$scratch/log" >&2
  exit 1
fi
