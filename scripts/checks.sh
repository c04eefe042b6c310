#!/bin/sh
# Defines the functions `fail` and `check`, which print one line per check. Scripts that source this file set `place` to
# a folder. At the end, `failed` is 1 if a check failed.
# shellcheck disable=SC2034,SC2154
failed=0
fail() {
  echo "FAILED: $*" >&2
  failed=1
}
# check WHAT COMMAND...: checks that the command succeeds; shows its output if it fails.
check() {
  what=$1
  shift
  if "$@" >"$place/output" 2>&1; then
    echo "ok: $what"
  else
    fail "$what"
    sed 's/^/  /' "$place/output" >&2
  fi
}
