#!/bin/sh
# From a clone to a trained model: installs missing packages, builds Primus, and trains a small model on English text.
#
#   ./quickstart.sh [options of 'primus quickstart']
set -eu
cd "$(dirname "$0")"

case "$(uname -s) $(uname -m)" in
  "Linux x86_64") ;;
  *)
    echo "Primus runs on Linux for x86-64; this is $(uname -s) for $(uname -m). README.md lists the tested systems." >&2
    exit 1
    ;;
esac
# A clean build takes 10 to 26 core-minutes; the last measurement was 13 (docs/performance.md).
cores=$(nproc)
echo "The first build takes $(((10 + cores - 1) / cores)) to $(((26 + cores - 1) / cores)) minutes on $cores cores, and 500 MB in build/."
scripts/install-packages.sh build quickstart
# Builds CPU kernels only for this machine's instruction set: a third of all CPU kernels. Format
# strings were checked during development.
scripts/build.sh -DPRIMUS_TESTS=OFF -DPRIMUS_CPU_KERNELS=native -DPRIMUS_CHECK_FORMATS=OFF

# Writes one verse per line without its reference, and an empty line between chapters.
text=build/quickstart/kjv.txt
if [ ! -s "$text" ]; then
  mkdir -p build/quickstart
  bible -f 'Gen1:1-Rev22:21' </dev/null |
    awk '{ split($1, at, ":"); if (NR > 1 && at[1] != chapter) print ""; chapter = at[1]; sub(/^[^ ]+ /, ""); print }' \
      >"$text.new"
  mv "$text.new" "$text"
fi

exec build/bin/primus quickstart "$@"
