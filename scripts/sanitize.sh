#!/bin/sh
# Builds the tests with a g++ sanitizer, in build-asan/ or build-tsan/, and runs them one after another.
#
#   scripts/sanitize.sh [address] [ctest options]      bounds, lifetimes (including arenas), leaks, undefined behavior:
#                                                      the fast test programs with all their tests, and the program
#                                                      that they start
#   scripts/sanitize.sh thread [GoogleTest options]    data races: tests of multi-threaded code
#
# Parallel jobs: CMAKE_BUILD_PARALLEL_LEVEL. A finding fails the test in which it occurs; the output has its report.
set -eu
cd "$(dirname "$0")/.."

kind=${1:-address}
[ $# -gt 0 ] && shift
case "$kind" in
  address)
    preset=asan
    targets=all
    set -- -L '^(fast|part)$' "$@"  # part: the slow tests of fast programs (primus_test)
    ;;
  thread)
    preset=tsan
    # Thread pools, streams, ranks as threads, the asynchronous writer, batch loader, tokenization, complete
    # training steps, rewards in the background.
    targets="base_test device_test comm_test engine_test lm_checkpoint_test lm_data_test lm_learning_test lm_objectives_test lm_train_test lm_train_families_test"
    # Excluded: tests that take minutes and are single-threaded or covered by the remaining tests.
    long='*Crash*:*EveryBitFlip*:JsonReader.*:Presets.*:Examples.*:Measure.*:LoadedModel.*:*Families.*:*EveryCollective*:EpisodeRuns.AModelLearns*'
    long=$long:MixtureOfExperts.BalanceLossBalances
    ;;
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
# shellcheck disable=SC2086  # one word per target
if ! { cmake --preset "$preset" && cmake --build "$build" --target $targets; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "The build failed; all of it is in $log" >&2
  exit 1
fi
echo "Built in $(($(date +%s) - start)) s."

# Programs started by tests inherit these options. AddressSanitizer cleans up its fake stacks at
# each exception, which takes longer than most tests. Without fake stacks, AddressSanitizer misses
# only errors of use after return.
export ASAN_OPTIONS="detect_stack_use_after_return=0:strict_string_checks=1"
export UBSAN_OPTIONS="print_stacktrace=1"
export TSAN_OPTIONS="second_deadlock_stack=1"
if [ "$kind" = address ]; then
  exec ctest --preset "$preset" "$@"
fi
# Starts the programs without ctest, whose own filters of tests would replace this one.
failed=
for program in $targets; do
  echo "== $program"
  "$build/tests/$program" --gtest_brief=1 --gtest_filter="-$long" "$@" || failed="$failed $program"
done
[ -z "$failed" ] || { echo "Failed:$failed" >&2; exit 1; }
