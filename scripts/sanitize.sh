#!/bin/sh
# Builds the tests with sanitizers, in build-asan/ or build-tsan/, and runs them one after the other.
#
#   scripts/sanitize.sh [address] [ctest options]   bounds, lifetimes, leaks and undefined behaviour; all tests
#   scripts/sanitize.sh thread [ctest options]      data races; the tests of what runs in threads
set -eu
cd "$(dirname "$0")/.."

kind=${1:-address}
[ $# -gt 0 ] && shift
case "$kind" in
  address) preset=asan ;;
  thread) preset=tsan ;;
  *)
    echo "usage: scripts/sanitize.sh [address|thread] [ctest options]" >&2
    exit 2
    ;;
esac

build=build-$preset
log=$build/build.log
mkdir -p "$build"
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1
echo "Building into $build/ ..."
start=$(date +%s)
if ! { cmake --preset $preset && cmake --build $build; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "The build failed; all of it is in $log" >&2
  exit 1
fi
echo "Built in $(($(date +%s) - start)) s."

# Programs that tests start find these, too. AddressSanitizer tidies its fake stacks up at each exception, which
# takes longer than most tests: without them only the use of a dead frame goes unseen.
export ASAN_OPTIONS="detect_stack_use_after_return=0:strict_string_checks=1:detect_leaks=1"
export UBSAN_OPTIONS="print_stacktrace=1"
export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan-suppressions.txt:second_deadlock_stack=1"
if [ $kind = thread ]; then
  # What starts threads: pools, streams, loaders, writers, and the program as a whole.
  set -- -R '^(base|device|engine|turbo_.*|lm_.*|cli|fault_.*)$' "$@"
fi
ctest --preset $preset "$@"
