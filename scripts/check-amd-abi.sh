#!/bin/sh
# Compares our declarations of hipBLASLt's and rocBLAS's interfaces (src/turbo/linear/hipblaslt.h, rocblas.h) with AMD's
# headers. Needs neither a build nor a GPU.
#
#   scripts/check-amd-abi.sh [FOLDER]      FOLDER holds hip/, hipblaslt/ and rocblas/; default: /opt/rocm/include
set -eu
case "${1:-}" in
  -h | --help)
    sed -n '2,5s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac
folder=${1:-/opt/rocm/include}
for header in hip/hip_runtime_api.h hipblaslt/hipblaslt.h rocblas/rocblas.h; do
  [ -e "$folder/$header" ] || {
    echo "$folder has no $header: name the include folder of ROCm with hipblaslt-dev and rocblas-dev" >&2
    exit 2
  }
done
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
${CXX:-g++} -std=c++20 -Wall -Wextra -Werror -D__HIP_PLATFORM_AMD__=1 -Isrc -isystem "$folder" -fsyntax-only \
  tests/turbo/linear/amd_abi.cpp
number() { sed -n "s/^#define $2_VERSION_$1  *\([0-9]*\).*/\1/p" "$3"; }
version() { echo "$(number MAJOR "$1" "$2").$(number MINOR "$1" "$2").$(number PATCH "$1" "$2")"; }
echo "our declarations are those of hipBLASLt $(version HIPBLASLT "$folder/hipblaslt/hipblaslt-version.h")" \
  "and rocBLAS $(version ROCBLAS "$folder/rocblas/internal/rocblas-version.h")"
