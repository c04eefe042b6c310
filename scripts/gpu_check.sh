#!/bin/sh
# Proves the GPU plug-in on the GPU of this machine: builds it, runs every operator's tests with the GPU as the
# device under test, and measures the operators. One table at the end.
#
#   scripts/gpu_check.sh [--gpus N] [OUTPUT_FOLDER]
#
# With --gpus: only what several GPUs do together, by scripts/gpu_comm.sh and scripts/gpu_ranks.sh.
#
# Runs on a bare CUDA machine, too: the libraries of build/ (scripts/build.sh) may come from another machine, and
# GPU_CHECK_DEPS names a folder with include/ and lib/ for GoogleTest and libxsmm. GPU_ARCHS sets the
# architectures (90a by default). Exits 1 if a test fails.
set -eu
cd "$(dirname "$0")/.."
gpus=1
if [ "${1:-}" = --gpus ]; then
  gpus=${2:?--gpus needs a number}
  shift 2
fi
out=${1:-build/gpu/check}
mkdir -p "$out" build/gpu/check
jobs=${JOBS:-$(nproc)}

# shellcheck disable=SC2086
JOBS=$jobs scripts/build-gpu.sh cuda ${GPU_ARCHS:-90a} >"$out/plugin.log" 2>&1 || {
  grep -E 'error' "$out/plugin.log" | head -30
  echo "the plug-in does not build: $out/plugin.log" >&2
  exit 1
}
tail -1 "$out/plugin.log"
if [ "$gpus" -gt 1 ]; then
  code=0
  scripts/gpu_comm.sh "$gpus" "$out" || code=1
  scripts/gpu_ranks.sh "$gpus" || code=1
  exit $code
fi

deps=${GPU_CHECK_DEPS:-}
printf '#define PRIMUS_SOURCE_DIR "%s"\n' "$PWD" >build/gpu/check/source_dir.h
flags="-std=c++20 -O1 -Isrc -Itests -include build/gpu/check/source_dir.h -ffp-contract=off"
[ -z "$deps" ] || flags="$flags -I$deps/include -L$deps/lib"
floors=
for floor in turbo/cpu/libprimus_turbo_cpu turbo/gemm/libprimus_turbo_gemm turbo/gpu/libprimus_turbo_emulated \
  turbo/libprimus_turbo device/libprimus_device tensor/libprimus_tensor base/libprimus_base; do
  floors="$floors build/src/$floor.a"
done
# The inner shell expands them.
# shellcheck disable=SC2016
flags="$flags" floors="$floors" xargs -P "$jobs" -I{} sh -c '
  name=$1
  sources=$(find "tests/turbo/$name" -name "*_test.cpp" ! -name "*golden*")
  ${CXX:-g++} $flags $sources $floors -lgtest -lgmock -lgtest_main -lxsmm -lxsmmnoblas -ldl -lpthread \
    -o build/gpu/check/${name}_test
' sh {} <<OPERATORS
adamw
attention
bias
cross_entropy
elementwise
embedding
grouped_linear
head_norm
latent_attention
linear
moe_permute
position_scale
rms_norm
rope
router
swiglu
top_logits
OPERATORS
# shellcheck disable=SC2086
${CXX:-g++} $flags -O2 benchmarks/operators/gpu_bench.cpp $floors -lxsmm -lxsmmnoblas -ldl -lpthread \
  -o build/gpu/check/gpu_bench

plugin=$PWD/build/lib/primus/libprimus_cuda.so
# Where cuDNN is not among the system's libraries, PyTorch has one.
if ! ldconfig -p | grep -q 'libcudnn\.so\.9'; then
  beside=$(python3 -c 'import nvidia.cudnn as n; print(list(n.__path__)[0] + "/lib")' 2>/dev/null || true)
  [ -z "$beside" ] || export LD_LIBRARY_PATH="$beside${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
failed=0
for test in build/gpu/check/*_test; do
  name=$(basename "$test" _test)
  if PRIMUS_TEST_GPU=$plugin timeout 120 "$test" >"$out/$name.log" 2>&1; then
    echo "ok      $name: $(grep -c '^\[       OK' "$out/$name.log") tests"
  else
    failed=1
    echo "FAILED  $name"
    grep -E '^\[  FAILED|Failure|what\(\)|rror|role ' "$out/$name.log" | sort | uniq -c | sort -rn | head -12
  fi
done
# Attention once more in the faster ways, whose last bits change from run to run.
if PRIMUS_TEST_GPU_FAST=1 PRIMUS_TEST_GPU=$plugin timeout 120 build/gpu/check/attention_test >"$out/attention_fast.log" 2>&1; then
  echo "ok      attention, not deterministic: $(grep -c '^\[       OK' "$out/attention_fast.log") tests"
else
  failed=1
  echo "FAILED  attention, not deterministic"
fi
timeout 200 build/gpu/check/gpu_bench "$plugin" 2>&1 | tee "$out/bench.log"
timeout 60 build/gpu/check/gpu_bench "$plugin" --attention --fast 2>&1 | tee "$out/bench_fast.log"
timeout 60 build/gpu/check/gpu_bench "$plugin" --products 2>&1 | tee "$out/bench_products.log"
timeout 60 build/gpu/check/gpu_bench "$plugin" --products --tune "$out/tuning" 2>&1 | tee "$out/bench_tuned.log"
if command -v compute-sanitizer >/dev/null; then
  for test in embedding moe_permute router attention; do
    filter="*"
    [ "$test" != attention ] || filter="*SinksMatchReference*"
    if PRIMUS_TEST_GPU=$plugin timeout 100 compute-sanitizer --error-exitcode 9 "build/gpu/check/${test}_test" \
      --gtest_filter="$filter" >"$out/sanitizer_$test.log" 2>&1; then
      echo "ok      compute-sanitizer $test"
    else
      failed=1
      echo "FAILED  compute-sanitizer $test"
      tail -5 "$out/sanitizer_$test.log"
    fi
  done
fi
[ ! -x build/bin/primus ] || scripts/gpu_models.sh || failed=1
exit $failed
