#!/bin/sh
# Shell scripts parse, and are executable; with shellcheck, they are linted too.
set -eu
cd "$(dirname "$0")/.."

failed=0
for script in quickstart.sh test.sh .ci/run scripts/*.sh; do
  sh -n "$script" || failed=1
  [ -x "$script" ] || { echo "$script is not executable"; failed=1; }
done
if command -v shellcheck >/dev/null; then
  shellcheck quickstart.sh test.sh .ci/run scripts/*.sh || failed=1
fi
[ $failed = 0 ] && echo "scripts are in order"
exit $failed
