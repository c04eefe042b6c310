#!/bin/sh
# Runs every fuzz target for some seconds on its corpus (libFuzzer, ASan, UBSan), one per core at a time.
#
#   scripts/fuzz.sh [seconds] [target ...]
set -eu
cd "$(dirname "$0")/.."

seconds=${1:-60}
[ $# -gt 0 ] && shift
# clang-16 is the oldest of Debian 12's compilers with libFuzzer that supports all C++20 library features used here.
if ! command -v clang++-16 >/dev/null; then
  echo "skipped: clang-16 is not installed"
  exit 0
fi
cmake --preset fuzz >build/fuzz-configure.log 2>&1 || { tail -n 20 build/fuzz-configure.log; exit 1; }
if [ $# -eq 0 ]; then
  # shellcheck disable=SC2046  # one word per target
  set -- $(sed -n 's/^primus_fuzzer(\([a-z_0-9]*\).*/\1/p' tests/fuzz/CMakeLists.txt)
fi
programs=$(printf '%s_fuzz ' "$@")
# shellcheck disable=SC2086  # one word per program
cmake --build build-fuzz --target $programs >build/fuzz-build.log 2>&1 || { tail -n 20 build/fuzz-build.log; exit 1; }

# New inputs go to the first folder; the repository's corpus is not changed. Sanitizers slow the program down,
# so work of one second in the released program takes several seconds here.
export seconds
# shellcheck disable=SC2016  # the inner shell expands it
printf '%s\n' "$@" | xargs -n 1 -P "$(nproc)" sh -c '
  found=build-fuzz/found/$1
  mkdir -p "$found"
  if build-fuzz/fuzz/"$1"_fuzz -max_total_time="$seconds" -timeout=5 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$found/" "$found" "tests/fuzz/corpus/$1" >"$found.log" 2>&1; then
    echo "$1: $(sed -n "s/^stat::number_of_executed_units: */executions /p" "$found.log"), no finding"
  else
    printf "%s\n%s: FAILED, see %s\n" "$(tail -n 30 "$found.log")" "$1" "$found.log"
    exit 1
  fi' fuzz
