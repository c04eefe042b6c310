#!/bin/sh
# From a clone to a trained model: installs what is missing, builds, and lets Primus learn English.
#
#   ./quickstart.sh [options of 'primus quickstart']
set -eu
cd "$(dirname "$0")"

scripts/install-packages.sh build quickstart
scripts/build.sh -DPRIMUS_TESTS=OFF

# One verse a line, an empty line between chapters; the references at the beginning of lines are left out.
text=build/quickstart/kjv.txt
if [ ! -s "$text" ]; then
  mkdir -p build/quickstart
  bible -f 'Gen1:1-Rev22:21' </dev/null |
    awk '{ split($1, at, ":"); if (NR > 1 && at[1] != chapter) print ""; chapter = at[1]; sub(/^[^ ]+ /, ""); print }' \
      >"$text.new"
  mv "$text.new" "$text"
fi

exec build/bin/primus quickstart "$@"
