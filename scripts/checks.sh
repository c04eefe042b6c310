#!/bin/sh
# For scripts that check one thing after the other, to be read by them: fail and check, one line for each. `place` is a
# folder of theirs; `failed` is 1 at the end if something failed.
# shellcheck disable=SC2034,SC2154
failed=0
fail() {
  echo "FAILED: $*" >&2
  failed=1
}
# check WHAT COMMAND...: the command ends well; what it prints is shown where it does not.
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
