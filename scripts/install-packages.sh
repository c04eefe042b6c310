#!/bin/sh
# Installs the missing Debian packages of the named groups (scripts/debian-packages.txt).
#
#   scripts/install-packages.sh build test
set -eu

list=$(dirname "$0")/debian-packages.txt
missing=
for group in "$@"; do
  packages=$(awk -v group="[$group]" '/^\[/ { wanted = ($1 == group); next } wanted && NF && $1 !~ /^#/ { print $1 }' "$list")
  for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
  done
done
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "These Debian packages are missing, or what they are called here:$missing" >&2
  exit 1
fi
as_root=
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "Missing packages, and no right to install them. As root: apt-get install$missing" >&2
    exit 1
  fi
  as_root="sudo"
fi
echo "Installing:$missing"
$as_root apt-get update -qq
# The words of $missing are package names from the list.
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
