#!/bin/sh
# Measures builds in CPU seconds, without the compiler cache. CPU time is less affected by other load than
# wall time.
#
#   scripts/build-times.sh clean [CMake options]   a clean build of the program, as by quickstart.sh, with each folder's share
#   scripts/build-times.sh tests [CMake options]   a clean build of everything, as by test.sh, with each folder's share
#   scripts/build-times.sh change [FILE...]        rebuilds of the program after a change to each file; default: an
#                                                  operator's kernels, its contract, a command, the keys. For
#                                                  src/config/keys/optimizer.def also after adding a key
#
# Builds in build-times/, which stays for the next call. JOBS sets the number of parallel compilers; the
# default is one per core.
set -eu
cd "$(dirname "$0")/.."

folder=build-times
export CCACHE_DISABLE=1 LANG=C.UTF-8
mode=${1:-}
[ $# = 0 ] || shift

# measured NAME TARGET...: builds, and prints the cost.
measured() {
  name=$1
  shift
  log=$folder/build-times.log
  began=$(date +%s)
  times >"$folder/times.before"
  ninja -C "$folder" -j "${JOBS:-$(nproc)}" "$@" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    echo "The build failed; all of it is in $log" >&2
    exit 1
  }
  times >"$folder/times.after"
  # Counts in the log: `ninja -n` leaves out the steps that follow from changed generated files.
  steps=$(sed -n 's/^\[[0-9]*\/\([0-9]*\)\].*/\1/p' "$log" | tail -n 1)
  # The second line of `times` has the user and system time of this shell's children: "1m2.5s 0m3.4s".
  spent=$(awk 'FNR == 2 { sum = 0; for (i = 1; i <= 2; ++i) { split($i, part, "m"); sum += 60 * part[1] + part[2] }
                          if (NR == FNR) first = sum; else printf "%.0f", sum - first }' "$folder/times.before" "$folder/times.after")
  echo "$name: $spent CPU seconds, $(($(date +%s) - began)) s, ${steps:-0} steps"
}

configured() {
  mkdir -p "$folder"
  cmake --preset release -B "$folder" -DPRIMUS_UNITY=ON "$@" >"$folder/configure.log" 2>&1 || {
    cat "$folder/configure.log" >&2
    exit 1
  }
}

# shares: prints each folder's share of the time of all steps, by ninja's clock. All kernels count as one folder.
shares() {
  awk -F '\t' 'NR > 1 { path = $4; sub(/\/CMakeFiles\/.*/, "", path); sub(/\/[^\/]*\.(a|o|def|h)$/, "", path)
                        taken[path] += $2 - $1; ++steps[path]; all += $2 - $1 }
                END { for (path in taken) printf "%5.1f %%  %4d steps  %s\n", 100 * taken[path] / all, steps[path], path }' \
    "$folder/.ninja_log" | sort -rn | head -n 20
}

program="-DPRIMUS_TESTS=OFF -DPRIMUS_CPU_KERNELS=native -DPRIMUS_CHECK_FORMATS=OFF" # as quickstart.sh

case "$mode" in
  clean)
    rm -rf "$folder"
    # shellcheck disable=SC2086 # options, split on purpose
    configured $program "$@"
    measured "the program from nothing"
    shares
    ;;
  tests)
    rm -rf "$folder"
    configured -DPRIMUS_TESTS=ON -DPRIMUS_BENCHMARKS=ON -DPRIMUS_CPU_KERNELS=all "$@"
    measured "everything from nothing"
    shares
    ;;
  change)
    # shellcheck disable=SC2086 # options, split on purpose
    [ -f "$folder/CMakeCache.txt" ] || configured $program
    [ $# -gt 0 ] || set -- src/turbo/swiglu/cpu.cpp src/turbo/swiglu/swiglu.cpp src/cli/model/info.cpp src/config/keys/optimizer.def
    for file; do [ -f "$file" ] || { echo "there is no file $file" >&2; exit 2; }; done
    ninja -C "$folder" -j "${JOBS:-$(nproc)}" primus >"$folder/build-times.log" 2>&1
    for file; do
      # A new timestamp is a change for ninja.
      touch "$file"
      measured "after a change of $file" primus
      [ "$file" = src/config/keys/optimizer.def ] || continue
      # A new timestamp costs as much as a changed help text or default. A new key costs more: it adds a field.
      cp "$file" "$folder/optimizer.def"
      trap 'cp "$folder/optimizer.def" src/config/keys/optimizer.def' EXIT
      trap 'exit 1' INT TERM
      sed 's/^GROUP(optimizer,.*/&\nKEY(int64_t, key_of_build_times, 0, "measures builds", .own())/' "$folder/optimizer.def" >"$file"
      if cmp -s "$folder/optimizer.def" "$file"; then
        echo "$file has no group 'optimizer' to add a key to" >&2
        exit 1
      fi
      measured "after adding a key to $file" primus
      cp "$folder/optimizer.def" "$file"
      trap - EXIT INT TERM
    done
    ;;
  *)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    [ "$mode" = --help ] || [ "$mode" = -h ] || exit 2
    ;;
esac
