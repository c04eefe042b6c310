#!/bin/sh
# Installs missing Debian packages (through sudo, where you are not root), builds, and tests.
#
#   ./test.sh        everything: all tests, models against their references, the cost of a mixture of experts,
#                    GPU kernels by the installed compilers, formatting, wording, fuzzing for ten seconds each;
#                    about 30 minutes on two cores, and as long again for the first build
#   ./test.sh fast   the fast tests: about two minutes on two cores, after the build
set -eu
cd "$(dirname "$0")"

mode=${1:-all}
case "$mode" in
  all | fast) ;;
  -h | --help)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
  *)
    echo "usage: ./test.sh [fast]" >&2
    exit 2
    ;;
esac

[ "$mode" = fast ] || echo "All tests: about 30 minutes on two cores, and as long again for a first build. ./test.sh fast is shorter."
scripts/install-packages.sh build test
# Without these packages, the affected steps below report that they are skipped.
[ "$mode" = fast ] || scripts/install-packages.sh lint fuzz hip || true
benchmarks=ON
[ "$mode" = fast ] && benchmarks=OFF
scripts/build.sh -DPRIMUS_TESTS=ON -DPRIMUS_BENCHMARKS=$benchmarks

failed=
unsteady=
step() {  # step NAME COMMAND...: runs the command, prints its time, and continues after a failure
  name=$1
  shift
  echo
  echo "== $name"
  began=$(date +%s)
  "$@" || failed="$failed, $name"
  echo "-- $(($(date +%s) - began)) s"
}

# Some tests start daemons, containers and jobs of many processes, which a busy machine can starve.
# Failed tests run again without other tests. If the failed tests now pass, the run continues, and
# the last line names these tests.
tests() {  # tests [CTEST OPTION...]
  ctest --test-dir build -j "$(nproc)" --output-on-failure --progress "$@" && return 0
  first=$(sed 's/^[0-9]*://' build/Testing/Temporary/LastTestsFailed.log | tr '\n' ' ')
  echo
  echo "== again, without other tests: $first"
  ctest --test-dir build --rerun-failed --output-on-failure --progress || return 1
  unsteady=$first
}

if [ "$mode" = fast ]; then
  step "fast tests" tests -L fast
else
  step "tests" tests
  step "models against their references" scripts/verify-goldens.sh
  # Compares CPU times of one run, so that other work on the machine affects both.
  step "a mixture of experts costs at most 1.25 dense models (fp32)" \
    build/bin/moe_bench --dtype fp32 --pairs 3 --microbatches 1 --limit 125
  step "two ranks train at least 0.9 times as fast as one with two threads" \
    benchmarks/train/ranks.py rate --pairs 3 --steps 2 --at-least 0.9
  step "ranks take the memory that was planned, within 2 %" \
    benchmarks/train/ranks.py memory --level optim_grads_params --within 0.02 seq_length=128
  # Only compiles, because no test machine has a GPU. scripts/gpu_check.sh tests on a GPU. Compiles for one
  # architecture of each vendor, because each takes about four minutes on two cores. Without architectures,
  # scripts/build-gpu.sh compiles for all of them.
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    step "GPU kernels compile with CUDA" scripts/build-gpu.sh cuda 90a
  fi
  if command -v clang++-19 >/dev/null; then
    step "GPU kernels compile with HIP" scripts/build-gpu.sh hip gfx942
  fi
  step "packaging" scripts/check-packaging.sh
  step "scripts" scripts/check-scripts.sh
  step "formatting" scripts/check-format.sh
  step "wording" scripts/check-words.sh
  step "fuzzing" scripts/fuzz.sh 10
fi

echo
if [ -n "$failed" ]; then
  echo "FAILED: ${failed#, }"
  exit 1
fi
echo "All passed ($mode).${unsteady:+ Passed only on the second try: $unsteady}"
