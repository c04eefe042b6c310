#!/bin/sh
# Checks the results of `cmake --install` and CPack for a finished build: the program is relocatable, the
# packages contain the expected files, all files run with the glibc of Debian 12, and the image definitions name
# existing files and packages. Needs no network and no container engine: scripts/build-images.sh builds the images.
#
#   scripts/check-packaging.sh [BUILD-FOLDER]      default: build
# `check` calls functions by name, and group names are single words.
# shellcheck disable=SC2317,SC2013
set -eu
cd "$(dirname "$0")/.."
build=$(cd "${1:-build}" && pwd)

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
. scripts/checks.sh
holds() {  # holds FILE TEXT
  grep -qF -- "$2" "$1" || { cat "$1"; echo "'$2' is not in it"; return 1; }
}

# Only files next to the program may be found.
unset PRIMUS_PRESETS PRIMUS_PLUGIN_PATH

train() {  # train PREFIX: two steps of a tiny model, in a separate folder
  mkdir -p "$place/run"
  (cd "$place/run" && "$1/bin/primus" train pretrain \
    --config "$1/share/primus/examples/native/configs/CPU/llama_tiny-pretrain.yaml" workspace="$place/run" \
    train_iters=2 lr_warmup_iters=0 lr_decay_iters=2 global_batch_size=2 micro_batch_size=1 seq_length=32 \
    max_position_embeddings=32 mock_data=true data_path=null train_data_path=null eval_iters=0 device=cpu \
    exp_name=installed >"$place/train.log" 2>&1) || { cat "$place/train.log"; return 1; }
}
presets_beside() {  # presets_beside PREFIX: checks that a setting's origin is the installed preset
  "$1/bin/primus" config show --origin \
    --config "$1/share/primus/examples/native/configs/CPU/llama_tiny-pretrain.yaml" >"$place/origins"
  holds "$place/origins" "$1/share/primus/presets/"
}

echo "== installed, and moved"
cmake --install "$build" --prefix "$place/first" >"$place/install.log" || { cat "$place/install.log"; exit 1; }
moved="$place/moved prefix"
mv "$place/first" "$moved"
check "primus version" "$moved/bin/primus" version
check "primus-cli is the same program" "$moved/bin/primus-cli" version
check "primus device list" "$moved/bin/primus" device list
check "presets are those beside the program" presets_beside "$moved"
check "a training of two steps" train "$moved"
check "manual pages" gzip -t "$moved/share/man/man1/primus.1.gz" "$moved/share/man/man1/primus-train-pretrain.1.gz"
for file in bash-completion/completions/primus zsh/vendor-completions/_primus fish/vendor_completions.d/primus.fish \
  doc/primus/copyright doc/primus/docs/install.md; do
  check "$file" test -s "$moved/share/$file"
done
guard=$build/tests/plugins/libprimus_guard.so
if [ -e "$guard" ]; then
  plugin_beside() {
    mkdir -p "$moved/lib/primus" && cp "$guard" "$moved/lib/primus/" &&
      "$moved/bin/primus" device list >"$place/devices" && holds "$place/devices" guard
  }
  check "a plug-in beside the program is found" plugin_beside
fi

echo "== packages"
(cd "$place" && cpack --config "$build/CPackConfig.cmake" -B "$place/packages" >"$place/cpack.log" 2>&1) ||
  { cat "$place/cpack.log"; exit 1; }
deb=$(ls "$place"/packages/*.deb)
dpkg-deb --info "$deb" >"$place/info"
dpkg-deb --contents "$deb" >"$place/contents"
check "the .deb is named" holds "$place/info" "Package: primus"
check "and depends on glibc 2.36" holds "$place/info" "libc6 (>= 2.36)"
# Package names, with or without versions, must be in the list.
wanted=$(awk '/^\[/ { wanted = ($1 == "[runtime]"); next } wanted && NF { print $1 }' scripts/debian-packages.txt | sort)
got=$(sed -n 's/^ *Depends: //p' "$place/info" | tr ',' '\n' | awk '{ print $1 }' | sort)
check "its dependencies are the group [runtime]" test "$wanted" = "$got"
for file in ./usr/bin/primus ./usr/bin/primus-cli ./usr/share/primus/scripts/wandb_offline.py ./usr/share/primus/presets/models/llama3.1_8B.yaml \
  ./usr/share/man/man1/primus.1.gz ./usr/share/doc/primus/copyright; do
  check "it has $file" holds "$place/contents" "$file"
done
foreign() { ! grep -v ' \./$\| \./usr/' "$place/contents"; }
check "and nothing outside /usr" foreign
dpkg-deb -x "$deb" "$place/from deb"
check "what it installs runs" "$place/from deb/usr/bin/primus" version
mkdir "$place/from tar"
tar -xzf "$place"/packages/*.tar.gz -C "$place/from tar" --strip-components=1
check "the tarball runs where it is unpacked" "$place/from tar/bin/primus" version
check "and finds its presets there" presets_beside "$place/from tar"

echo "== libraries"
newest() {  # newest FILE PREFIX LIMIT: checks that all symbol versions with that prefix are at most the limit
  version=$(objdump -T "$1" | grep -o "$2_[0-9.]*" | sed "s/^$2_//" | sort -Vu | tail -n 1)
  [ -z "$version" ] && return 0
  [ "$(printf '%s\n%s\n' "$version" "$3" | sort -V | tail -n 1)" = "$3" ] || { echo "$1 needs $2 $version"; return 1; }
}
for binary in "$moved/bin/primus" "$moved"/lib/primus/*.so; do
  [ -e "$binary" ] || continue
  check "$(basename "$binary") runs on glibc 2.36" newest "$binary" GLIBC 2.36
  check "$(basename "$binary") runs on the C++ library of g++ 12" newest "$binary" GLIBCXX 3.4.30
done

echo "== images"
group_exists() { grep -q "^\[$1\]" scripts/debian-packages.txt || { echo "there is no group [$1]"; return 1; }; }
version=$(sed -n 's/^project(primus VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
has_steps_of_cpu() {
  ! grep -E '^(COPY|WORKDIR|ENTRYPOINT|CMD|RUN --mount|RUN cmake)' packaging/docker/cpu.Dockerfile | grep -vxFf "$1"
}
for image in packaging/docker/*.Dockerfile; do
  # The sources of COPY lines must be files of the repository that .dockerignore admits. Words that begin with -- are
  # options.
  sed -n 's/^COPY \(.*\)/\1/p' "$image" | grep -v -- '--from=' | while read -r line; do
    for word in ${line% *}; do
      check "$image copies $word, which is there" test -e "$word"
      check "and .dockerignore lets it through" grep -qx "!${word%%/*}" .dockerignore
    done
  done >"$place/copies" 2>&1
  cat "$place/copies"
  if grep -q FAILED "$place/copies"; then failed=1; fi
  for group in $(grep -v '^COPY' "$image" | grep -o 'install-packages.sh [a-z -]*' | cut -d' ' -f2-); do
    check "$image installs the group $group, which is there" group_exists "$group"
  done
  # All files that the build reads must be in the image.
  for word in $(git ls-files 2>/dev/null | grep -E '^(CMake|cmake/|presets/|src/|LICENSE)' | cut -d/ -f1 | sort -u); do
    check "$image has $word" grep -qE "^COPY .*\b$word\b" "$image"
  done
  check "the version on its label is this one" grep -qF "image.version=\"$version\"" "$image"
  # The other images are compared with the CPU image, which can be built without a registry (scripts/build-images.sh).
  check "$image builds and starts the program as the one for CPUs does" has_steps_of_cpu "$image"
done
sed -n '/^%files/,/^%post/p' packaging/apptainer/primus.def | awk 'NF == 2' | while read -r from to; do
  case $from in build/*) ;; *) check "the Apptainer definition copies $from, which is there" test -e "$from" ;; esac
  # In %post, the host's /tmp and /var/tmp replace the image's.
  case $to in /tmp/* | /var/tmp/*) fail "the Apptainer definition copies $from to $to, which %post cannot see" ;; esac
done >"$place/copies" 2>&1
cat "$place/copies"
if grep -q FAILED "$place/copies"; then failed=1; fi
for group in $(grep -o 'install-packages.sh [a-z -]*$' packaging/apptainer/primus.def | cut -d' ' -f2-); do
  check "the Apptainer definition installs the group $group, which is there" group_exists "$group"
done

[ $failed = 0 ] && echo "packaging is in order"
exit $failed
