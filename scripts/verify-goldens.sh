#!/bin/sh
# Verifies all reference models of tests/golden whose family Primus supports: logits, gradients and AdamW
# steps, in fp32 and bf16.
set -eu
cd "$(dirname "$0")/.."

failed=0
for model in tests/golden/models/*/; do
  for type in fp32 bf16; do
    if build/bin/primus model verify "$model" --inputs "$model/io.safetensors" --grads "$model/grads.safetensors" \
      --trajectory "$model/golden.json" --dtype $type >build/verify.txt; then
      echo "verified $type $model"
    else
      failed=1
      cat build/verify.txt
      echo "NOT VERIFIED $type $model"
    fi
  done
done
exit $failed
