#!/bin/sh
# Checks that every C++ file is formatted according to .clang-format.
set -eu
cd "$(dirname "$0")/.."

if ! command -v clang-format >/dev/null; then
  echo "skipped: clang-format is not installed"
  exit 0
fi
find src tests benchmarks \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) -print0 | xargs -0 clang-format --dry-run -Werror
echo "formatting is in order"
