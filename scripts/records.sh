#!/bin/sh
# For the measuring scripts, which source this file. RECORDS names a file to which each result is added as soon as it is
# measured, as a line of JSON; without RECORDS, nothing is recorded. ENDS is a time in seconds since 1970, after which
# nothing is started or continued; without ENDS, only the limits of the single programs hold.

# record ROW KIND FILE: adds a result to $RECORDS (scripts/mixture_table.py lists the kinds).
record() {
  [ -z "${RECORDS:-}" ] || python3 scripts/mixture_table.py record "$RECORDS" "$@"
}

# within SECONDS COMMAND...: runs the command for at most SECONDS and not beyond $ENDS. Exits with 124 if time is over.
within() {
  within_seconds=$1
  shift
  if [ -n "${ENDS:-}" ]; then
    within_left=$((ENDS - $(date +%s)))
    [ "$within_left" -ge "$within_seconds" ] || within_seconds=$within_left
    if [ "$within_seconds" -le 0 ]; then
      echo "not started: the time for all measurements was over" >&2
      return 124
    fi
  fi
  within_code=0
  timeout "$within_seconds" "$@" || within_code=$?
  [ $within_code != 124 ] || echo "stopped after $within_seconds s" >&2
  return $within_code
}
