#!/bin/sh
# Configures and builds into build/ (release), with one job per core. By default it compiles files in groups,
# and CPU kernels for all instruction sets; options change that (-DPRIMUS_UNITY=OFF,
# -DPRIMUS_CPU_KERNELS=native).
#
#   scripts/build.sh [CMake options]
set -eu
cd "$(dirname "$0")/.."

log=build/build.log
# With paths relative to the checkout, a second clone can use the first clone's cache.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1
# The code below parses English error messages, and ccache distinguishes languages.
unset LC_ALL LC_MESSAGES LC_CTYPE
export LANG=C.UTF-8
mkdir -p build
echo "Building into build/ ..."
start=$(date +%s)
: >"$log"
# A POSIX shell does not report the status of a pipe's first command, so the command's status goes to a file.
status=build/build.status
{
  code=0
  { cmake --preset release -DPRIMUS_UNITY=ON -DPRIMUS_CPU_KERNELS=all "$@" && cmake --build build; } || code=$?
  echo "$code" >"$status"
} 2>&1 | scripts/build-progress.sh "$log"
if [ "$(cat "$status")" != 0 ]; then
  grep -nE 'error|Error|FAILED' "$log" | head -n 40 >&2 || true
  tail -n 15 "$log" >&2
  echo "The build failed; all of it is in $log" >&2
  exit 1
fi
echo "Built in $(($(date +%s) - start)) s."
