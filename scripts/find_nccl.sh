#!/bin/sh
# For the other scripts, which source this file: if NCCL is not a system library, lets programs load the one of
# PyTorch, by LD_LIBRARY_PATH.
if ! ldconfig -p | grep -q 'libnccl\.so\.2'; then
  beside=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' 2>/dev/null || true)
  [ -z "$beside" ] || export LD_LIBRARY_PATH="$beside${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
