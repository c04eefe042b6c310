#!/bin/sh
# Reads ninja's output, copies it to a log, and shows the progress: on a terminal in one updated line, otherwise in a
# new line every 20 seconds.
#
#   ninja 2>&1 | scripts/build-progress.sh LOG
set -eu

log=$1
: >>"$log"
start=$(date +%s)
shown=$start
seen=
blank='                                                                      '

while IFS= read -r line; do
  printf '%s\n' "$line" >>"$log"
  # "[12/345] Building CXX object ..."
  case "$line" in
    \[[0-9]*/[0-9]*\]*) ;;
    *) continue ;;
  esac
  done=${line#\[}
  done=${done%%/*}
  total=${line#*/}
  total=${total%%\]*}
  case "$done$total" in *[!0-9]*) continue ;; esac
  [ "$total" -gt 0 ] || continue
  now=$(date +%s)
  seen=yes
  text="$((100 * done / total)) %, step $done of $total"
  # Earlier estimates are too inaccurate.
  if [ "$done" -ge 20 ] && [ "$done" -lt "$total" ]; then
    left=$(((now - start) * (total - done) / done))
    text="$text, about $((left / 60 + 1)) min left"
  fi
  if [ -t 1 ]; then
    printf '\r%.70s\r%s' "$blank" "$text"
  elif [ $((now - shown)) -ge "${PRIMUS_PROGRESS_SECONDS:-20}" ]; then
    echo "$text"
    shown=$now
  fi
done
if [ -t 1 ] && [ -n "$seen" ]; then printf '\r%.70s\r' "$blank"; fi
