#!/bin/sh
# Checks that shell scripts parse, that scripts and Python programs are executable, and, if shellcheck is
# installed, lints shell scripts.
set -eu
cd "$(dirname "$0")/.."

failed=0
for script in quickstart.sh test.sh .ci/run scripts/*.sh; do
  sh -n "$script" || failed=1
  [ -x "$script" ] || { echo "$script is not executable"; failed=1; }
done
for script in scripts/*.py; do
  [ "$(head -c 2 "$script")" != '#!' ] || [ -x "$script" ] || { echo "$script is not executable"; failed=1; }
done
if command -v shellcheck >/dev/null; then
  shellcheck quickstart.sh test.sh .ci/run scripts/*.sh || failed=1
fi
[ $failed = 0 ] && echo "scripts are in order"
exit $failed
