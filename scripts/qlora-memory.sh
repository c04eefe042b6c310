#!/bin/sh
# Prints the planned memory of LoRA runs with base weights in bf16 and in 4 bits, for the table of
# docs/posttrain.md. Needs no GPU: `primus --dry-run --hardware` measures the step.
#
#   scripts/qlora-memory.sh [PRIMUS]     PRIMUS: the program, by default build/bin/primus
set -eu
cd "$(dirname "$0")/.."
primus=${1:-build/bin/primus}

for model in llama3.1_8B llama3.1_70B; do
  for hardware in nvidia_h100 amd_mi300x; do
    for weights in none nf4; do
      plan=$("$primus" train pretrain --config "examples/native/configs/any/$model-BF16-pretrain.yaml" --dry-run \
        --hardware "$hardware" seq_length=2048 max_position_embeddings=2048 micro_batch_size=1 global_batch_size=1 \
        recompute_granularity=full recompute_method=uniform recompute_num_layers=1 mock_data=true \
        "lora={dim: 16, base_weights: $weights}" 2>/dev/null) || true
      printf '%s' "$plan" | awk -v model="$model" -v hardware="$hardware" -v weights="$weights" '
        $1 == "memory" && $4 == "on" { total = $2 " " $3 }
        $1 == "persistent" { persistent = $2 " " $3 }
        $1 == "stash" { stash = $2 " " $3 }
        $1 == "scratch" { scratch = $2 " " $3 }
        $1 == "FITS" { fits = "yes" }
        $1 == "checkpoint" && $3 ~ /iB/ { checkpoint = $2 " " $3 }
        END {
          printf "%s %s %s: total %s, persistent %s, stash %s, scratch %s, checkpoint %s, fits: %s\n", model, hardware,
                 weights, total, persistent, stash, scratch, checkpoint, fits == "" ? "no" : fits
        }'
    done
  done
done
