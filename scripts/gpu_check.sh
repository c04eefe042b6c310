#!/bin/sh
# Verifies the GPU plug-in on this machine's GPU: builds it, runs every operator's tests with the GPU as the
# device under test, and measures the operators. Prints a table at the end.
#
#   scripts/gpu_check.sh [--built] [--gpus N] [--only WORD]... [OUTPUT_FOLDER]
#
# --only selects some of tests, rates, sanitizer, models, sampler (scripts/gpu_sampler.sh), objectives
# (scripts/gpu_objectives.sh), lost, graphs, decoding (generation and prompts, compared with transformers), peers
# (training compared with PyTorch, and with a step of only products and attention), and mixtures (the table of
# mixtures of experts in docs/performance.md, by scripts/gpu_mixtures.sh; not run by default, because it repeats other
# parts). With --gpus, runs only the multi-GPU tests: scripts/gpu_comm.sh, gpu_sampler.sh, gpu_objectives.sh and
# gpu_ranks.sh; --only then accepts comm, sampler, objectives, mixtures and rows of gpu_ranks.sh (losses, sharded, ...).
#
# Also runs on a bare CUDA machine. With --built, build/ was built on another machine and is used unchanged:
# lib/primus, bin/primus, bin/gpu_bench and tests/turbo_*_test (-DPRIMUS_TESTS=ON -DPRIMUS_BENCHMARKS=ON).
# Otherwise the plug-in and the tests are built here with the libraries of build/; GPU_CHECK_DEPS then names a
# folder with include/ and lib/ for GoogleTest and libxsmm, and GPU_ARCHS the architectures (90a by default).
# Exits 1 if a test fails.
set -eu
cd "$(dirname "$0")/.."
gpus=1
built=
parts=
while :; do
  case ${1:-} in
    --gpus) gpus=${2:?--gpus needs a number} && shift 2 ;;
    --only) parts="$parts ${2:?--only needs a word}" && shift 2 ;;
    --built) built=1 && shift ;;
    *) break ;;
  esac
done
if [ "$gpus" -gt 1 ]; then
  known="comm sampler objectives mixtures losses overlap replicated sharded tensor library pipeline context context_gather context_by_heads context_optim mixtral deepseek dispatch peer killed"
else
  known="tests rates sanitizer models sampler objectives lost graphs decoding peers mixtures"
fi
for word in $parts; do
  case " $known " in
    *" $word "*) ;;
    *)
      echo "--only does not know '$word'; with --gpus $gpus it takes: $known" >&2
      exit 2
      ;;
  esac
done
out=${1:-build/gpu/check}
mkdir -p "$out" build/gpu/check
jobs=${JOBS:-$(nproc)}

# part NAME: succeeds if this part was requested.
part() {
  case "${parts:-all} " in
    all\ | *" $1 "*) return 0 ;;
    *) return 1 ;;
  esac
}

if [ -z "$built" ]; then
  # shellcheck disable=SC2086
  JOBS=$jobs scripts/build-gpu.sh cuda ${GPU_ARCHS:-90a} >"$out/plugin.log" 2>&1 || {
    grep -E 'error' "$out/plugin.log" | head -30
    echo "the plug-in does not build: $out/plugin.log" >&2
    exit 1
  }
  tail -1 "$out/plugin.log"
fi
if [ "$gpus" -gt 1 ]; then
  code=0
  ! part comm || scripts/gpu_comm.sh "$gpus" "$out" || code=1
  ! part sampler || GPUS=$gpus scripts/gpu_sampler.sh || code=1
  if part objectives && [ "$gpus" -gt 2 ]; then
    echo "not run: objectives, whose models have two heads and two layers for two GPUs"
  elif part objectives; then
    GPUS=$gpus scripts/gpu_objectives.sh || code=1
  fi
  case "$parts " in *" mixtures "*) GPUS=$gpus scripts/gpu_mixtures.sh "$out" || code=1 ;; esac
  if [ -z "$parts" ]; then
    scripts/gpu_ranks.sh "$gpus" || code=1
  else
    # The words of --only are separate words.
    # shellcheck disable=SC2086
    rows=$(printf '%s\n' $parts | grep -vxE 'comm|sampler|objectives|mixtures' || true)
    [ -z "$rows" ] || ROWS=$rows scripts/gpu_ranks.sh "$gpus" || code=1
  fi
  exit $code
fi

# All folders of src/turbo with GPU kernels, and their shared code.
operators="$(for kernels in src/turbo/*/gpu.cu; do basename "$(dirname "$kernels")"; done) master_weights"
if [ -n "$built" ]; then
  tests=build/tests/turbo_
  bench=build/bin/gpu_bench
else
  tests=build/gpu/check/
  bench=build/gpu/check/gpu_bench
  deps=${GPU_CHECK_DEPS:-}
  printf '#define PRIMUS_SOURCE_DIR "%s"\n' "$PWD" >build/gpu/check/source_dir.h
  flags="-std=c++20 -O1 -Isrc -Itests -include build/gpu/check/source_dir.h -ffp-contract=off"
  [ -z "$deps" ] || flags="$flags -I$deps/include -L$deps/lib"
  floors=
  for floor in turbo/cpu/libprimus_turbo_cpu turbo/gemm/libprimus_turbo_gemm turbo/gpu/libprimus_turbo_emulated \
    turbo/libprimus_turbo device/libprimus_device tensor/libprimus_tensor base/libprimus_base; do
    floors="$floors build/src/$floor.a"
  done
  # The inner shell expands the variables.
  # shellcheck disable=SC2016,SC2086
  printf '%s\n' $operators | flags="$flags" floors="$floors" xargs -P "$jobs" -I{} sh -c '
    name=$1
    sources=$(find "tests/turbo/$name" -name "*_test.cpp" ! -name "*golden*")
    ${CXX:-g++} $flags $sources $floors -lgtest -lgmock -lgtest_main -lxsmm -lxsmmnoblas -ldl -lpthread \
      -o build/gpu/check/${name}_test
  ' sh {}
  # shellcheck disable=SC2086
  ${CXX:-g++} $flags -O2 benchmarks/operators/gpu_bench.cpp benchmarks/operators/gpu_mixtures.cpp $floors -lxsmm -lxsmmnoblas -ldl -lpthread -o $bench
fi

plugin=$PWD/build/lib/primus/libprimus_cuda.so
. scripts/find_cudnn.sh
failed=0
if part tests; then
  # Excludes tests of reference files, whose paths are those of the machine that built the programs.
  filter=${built:+--gtest_filter=-*MegatronRouter*}
  for operator in $operators; do
    # An operator may have several test programs.
    for test in "$tests$operator"*_test; do
      name=$(basename "$test" _test)
      if PRIMUS_TEST_GPU=$plugin timeout 120 "$test" ${filter:+"$filter"} >"$out/$name.log" 2>&1; then
        echo "ok      $name: $(grep -c '^\[       OK' "$out/$name.log") tests"
      else
        failed=1
        echo "FAILED  $name"
        grep -E '^\[  FAILED|Failure|what\(\)|rror|role ' "$out/$name.log" | sort | uniq -c | sort -rn | head -12
      fi
    done
  done
  # Tests attention again in the faster modes, whose last bits vary between runs.
  if PRIMUS_TEST_GPU_FAST=1 PRIMUS_TEST_GPU=$plugin timeout 120 "${tests}attention_test" ${filter:+"$filter"} \
    >"$out/attention_fast.log" 2>&1; then
    echo "ok      attention, not deterministic: $(grep -c '^\[       OK' "$out/attention_fast.log") tests"
  else
    failed=1
    echo "FAILED  attention, not deterministic"
  fi
  # Tests attention again with our own kernels.
  if PRIMUS_TEST_GPU_OWN=1 PRIMUS_TEST_GPU=$plugin timeout 120 "${tests}attention_test" ${filter:+"$filter"} \
    >"$out/attention_own.log" 2>&1; then
    echo "ok      attention, own kernels: $(grep -c '^\[       OK' "$out/attention_own.log") tests"
  else
    failed=1
    echo "FAILED  attention, own kernels"
  fi
fi
# rates LIMIT NAME WORD...: runs gpu_bench, prints its output and writes its log.
rates() {
  limit=$1
  log=$out/$2.log
  shift 2
  timeout "$limit" "$bench" "$@" >"$log" 2>&1 || {
    failed=1
    echo "FAILED  $bench $*"
  }
  cat "$log"
}

if part rates; then
  rates 200 bench "$plugin"
  rates 60 bench_own "$plugin" --attention --own
  rates 60 bench_fast "$plugin" --attention --fast
  rates 120 bench_experts "$plugin" --experts
  rates 60 bench_products "$plugin" --products
  rates 60 bench_tuned "$plugin" --products --tune "$out/tuning"
fi
if part sanitizer && ! command -v compute-sanitizer >/dev/null; then
  echo "not run: compute-sanitizer is not here"
elif part sanitizer; then
  # Each entry is OPERATOR:TESTS:NAME=VALUE. The last entry selects our own attention kernels. Runs only some tests,
  # because the sanitizer makes kernels many times slower.
  for check in "embedding:*:" "moe_permute:*:" "router:*:" "attention:*SinksMatchReference*:" \
    "attention:*HeadsForWarpgroups*:PRIMUS_TEST_GPU_OWN=1" "attention:*PagedAttention*:" "linear:*FewRows*:" \
    "grouped_linear:*ThreeProducts*:" "top_logits:*:"; do
    test=${check%%:*}
    filter=${check#*:}
    log=$out/sanitizer_$(echo "$check" | tr -c 'a-zA-Z_\n' '_').log
    # shellcheck disable=SC2086
    if env PRIMUS_TEST_GPU="$plugin" ${filter#*:} timeout 100 compute-sanitizer --error-exitcode 9 "$tests${test}_test" \
      --gtest_filter="${filter%:*}" >"$log" 2>&1; then
      echo "ok      compute-sanitizer $check $(grep -c '^\[       OK' "$log") tests"
    else
      failed=1
      echo "FAILED  compute-sanitizer $check"
      tail -5 "$log"
    fi
  done
fi
if part models && [ -x build/bin/primus ]; then scripts/gpu_models.sh || failed=1; fi
if part sampler && [ -x build/bin/primus ]; then scripts/gpu_sampler.sh || failed=1; fi
if part objectives && [ -x build/bin/primus ]; then scripts/gpu_objectives.sh || failed=1; fi
if part lost && [ -x build/bin/primus ]; then scripts/gpu_lost.sh || failed=1; fi
if part graphs && [ -x build/bin/primus ]; then scripts/gpu_graphs.sh || failed=1; fi
if part decoding && [ -x build/bin/primus ]; then
  python3 -c 'import transformers' 2>/dev/null || echo "not run: transformers, the peer of generation, is not here"
  PEER=$(python3 -c 'import torch, transformers' 2>/dev/null && echo 1 || echo 0) scripts/gpu_decoding.sh || failed=1
fi
case "$parts " in
  *" mixtures "*) BENCH=$bench scripts/gpu_mixtures.sh "$out" || failed=1 ;;
esac
if part peers && ! python3 -c 'import torch' 2>/dev/null; then
  echo "not run: PyTorch, the peer of training, is not here"
elif part peers && [ -x build/bin/primus ]; then
  scripts/gpu_peers.sh || failed=1
fi
exit $failed
