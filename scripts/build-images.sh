#!/bin/sh
# Builds container images (packaging/docker) with podman and tests each: version, devices, training with one and two ranks,
# as an ordinary user, with a read-only root file system, without network and without capabilities.
#
#   scripts/build-images.sh [--bootstrap] [--cpu] [--rocm] [--cuda] [--apptainer]
#
#   --cpu, --rocm   the images for CPUs and for AMD GPUs (whose kernels are compiled but not run)
#   --cuda          the image for NVIDIA GPUs: needs NVIDIA's package source; its kernels are not run either
#   --apptainer     the Apptainer image of the program in build/: needs scripts/build.sh, and apptainer on the PATH
#   --bootstrap     builds the base images from Debian's packages with mmdebstrap, for machines without a registry
#
# Needs podman, runc, and for ordinary users uidmap. Podman's storage is build/images, so existing images on this
# machine are neither used nor changed. Later builds reuse this folder; to remove it:
#   CONTAINERS_STORAGE_CONF=$PWD/build/images/storage.conf podman unshare rm -rf build/images     (as root: only rm -rf)
# The first CPU build takes as long as scripts/build.sh, plus the installation of compiler packages.
# `check` calls functions by name, and the shell in a container expands its own variables.
# shellcheck disable=SC2317,SC2016
set -eu
cd "$(dirname "$0")/.."

usage() {
  sed -n '2,16s/^# \{0,1\}//p' "$0"
}
bootstrap=
images=
apptainer=
for word in "$@"; do
  case $word in
    --cpu | --rocm | --cuda) images="$images ${word#--}" ;;
    --apptainer) apptainer=1 ;;
    --bootstrap) bootstrap=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
done
[ -n "$images$apptainer" ] || {
  usage >&2
  exit 2
}
missing() {  # missing TOOL WHERE-FROM
  echo "$1 is missing: $2" >&2
  exit 1
}
command -v podman >/dev/null || missing podman "apt-get install podman runc uidmap"
[ -z "$bootstrap" ] || command -v mmdebstrap >/dev/null || missing mmdebstrap "apt-get install mmdebstrap"
[ -z "$apptainer" ] || command -v apptainer >/dev/null || missing apptainer "Debian 12 has no package of it; see apptainer.org"
[ -z "$apptainer" ] || [ -x build/bin/primus ] || missing build/bin/primus "run scripts/build.sh"

place=$PWD/build/images
mkdir -p "$place/tmp"
export TMPDIR="$place/tmp"  # also for build caches
export CONTAINERS_STORAGE_CONF="$place/storage.conf" CONTAINERS_CONF="$place/containers.conf"
# By default, podman requests the maximum resource limits, which an ordinary user may not get. The following limits are
# allowed.
cat >"$CONTAINERS_CONF" <<END
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
END
if command -v runc >/dev/null; then echo 'runtime = "runc"' >>"$CONTAINERS_CONF"; fi
storage() {  # storage DRIVER
  printf '[storage]\ndriver = "%s"\ngraphroot = "%s/storage"\nrunroot = "%s/run"\n' "$1" "$place" "$place" \
    >"$CONTAINERS_STORAGE_CONF"
  podman info >"$place/info" 2>&1
}
# If the file system does not support overlays (as inside a container), each layer is a copy.
storage overlay || storage vfs || {
  cat "$place/info" >&2
  exit 1
}

. scripts/checks.sh
prints() {  # prints TEXT COMMAND...
  text=$1
  shift
  "$@" >"$place/printed" 2>&1 || { cat "$place/printed"; return 1; }
  grep -qF -- "$text" "$place/printed" || { cat "$place/printed"; echo "'$text' is not in it"; return 1; }
}

# Makes a base image like Docker's own Debian images: the essential packages and apt; "slim" without documentation.
base() {  # base NAME [OPTION OF MMDEBSTRAP...]
  name=$1
  shift
  podman image exists "localhost/debian:$name" && return
  echo "Making debian:$name from packages ..."
  sources=
  for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
    if grep -qs bookworm "$file"; then
      sources=$file
      break
    fi
  done
  # Without this machine's package sources, mmdebstrap uses its own. /usr is merged from the start: a package
  # that merges it later would require Perl.
  # shellcheck disable=SC2086
  mmdebstrap --quiet --variant=minbase --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include=usr-is-merged \
    --dpkgopt=force-unsafe-io "$@" bookworm "$place/base.tar" $sources >"$place/base.log" 2>&1 || {
    tail -n 20 "$place/base.log" >&2
    exit 1
  }
  podman import --quiet --change 'CMD ["bash"]' "$place/base.tar" "localhost/debian:$name" >/dev/null
  rm "$place/base.tar"
}
if [ -n "$bootstrap" ]; then
  base bookworm
  base bookworm-slim --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*'
fi

version=$(sed -n 's/^project(primus VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
example=/opt/primus/share/primus/examples/native/configs/CPU/llama_tiny-pretrain.yaml
user=4321  # a uid that the image does not define

# Runs a container without privileges: unknown user, no capabilities, read-only file system, no network.
confined() {  # confined [OPTION OF PODMAN...] IMAGE [WORD...]
  podman run --rm --network none --user "$user:$user" --cap-drop ALL --security-opt no-new-privileges --read-only \
    --read-only-tmpfs=false "$@"
}
three_steps() {  # three_steps COMMAND...: trains three steps with a Primus whose /workspace is an empty folder
  "$@" train pretrain --config "$example" train_iters=3 save_interval=3 device=cpu exp_name=tried >"$place/train.log" 2>&1 ||
    { cat "$place/train.log"; return 1; }
  prints "done after iteration 3" cat "$place/train.log"
}
empty_workspace() {
  rm -rf "$place/workspace"
  mkdir "$place/workspace"
  chmod 777 "$place/workspace"
}
train() {  # train IMAGE RANKS: trains, and checks that the run's files belong to the user
  empty_workspace
  three_steps confined --env "GPUS_PER_NODE=$2" --volume "$place/workspace:/workspace" "$1" direct -- || return 1
  prints model.safetensors confined --volume "$place/workspace:/workspace" --entrypoint find "$1" \
    /workspace -user "$user" -name model.safetensors || return 1
  confined --volume "$place/workspace:/workspace" --entrypoint sh "$1" -c 'rm -rf /workspace/*'
}
train_by_apptainer() {
  empty_workspace
  three_steps apptainer run --containall --no-home --bind "$place/workspace:/workspace" --pwd /workspace "$place/primus.sif"
}
of_image() { podman image inspect --format "$2" "$1"; }  # of_image IMAGE FIELD
is() {  # is WANTED COMMAND...
  wanted=$1
  shift
  got=$("$@")
  [ "$got" = "$wanted" ] || { echo "it is '$got', not '$wanted'"; return 1; }
}
at_most() { [ "$1" -le "$2" ] || { echo "it is $1, more than $2"; return 1; }; }
no_tools() {  # no_tools IMAGE: packages that only the build needs are not installed
  confined --entrypoint sh "$1" -c 'for tool in g++ cmake ninja ccache clang-19 nvcc; do ! command -v $tool || exit 1; done'
}
linked() {  # linked IMAGE: all libraries that the program and its plug-ins link are in the image
  confined --entrypoint sh "$1" -c '
    for file in /opt/primus/bin/primus /opt/primus/lib/primus/*.so; do
      [ ! -e $file ] || { ldd $file || exit 1; }
    done' >"$place/linked" && ! grep "not found" "$place/linked"
}
# Hides podman's messages, because the build's output would be hard to find among these messages.
build() {  # build IMAGE
  podman build --network host --layers --file "packaging/docker/$1.Dockerfile" --tag "localhost/primus:$1" . \
    >"$place/$1.log" 2>&1 || { tail -n 40 "$place/$1.log"; echo "all of it is in $place/$1.log"; return 1; }
}

for image in $images; do
  echo "== $image"
  began=$(date +%s)
  if ! build "$image" >"$place/output" 2>&1; then
    echo "FAILED: the image for $image is built" >&2
    sed 's/^/  /' "$place/output" >&2
    failed=1
    continue
  fi
  name=localhost/primus:$image
  bytes=$(of_image "$name" '{{.Size}}')
  echo "built in $(($(date +%s) - began)) s: $((bytes / 1000000)) MB"

  check "it starts Primus" is "[primus]" of_image "$name" '{{.Config.Entrypoint}}'
  check "in /workspace" is /workspace of_image "$name" '{{.Config.WorkingDir}}'
  check "as root, unless --user says otherwise" is "" of_image "$name" '{{.Config.User}}'
  check "its label has the version" is "$version" of_image "$name" '{{index .Config.Labels "org.opencontainers.image.version"}}'
  check "and the licence" is Apache-2.0 of_image "$name" '{{index .Config.Labels "org.opencontainers.image.licenses"}}'
  [ "$image" != cpu ] || check "it takes at most 120 MB" at_most "$bytes" 120000000
  check "no compiler is in it" no_tools "$name"
  check "no library is missing" linked "$name"
  check "without words it explains itself" prints "Primus trains foundation models" confined "$name"
  check "primus version" prints "$version" confined "$name" version
  check "primus device list" prints cpu confined "$name" device list
  check "manual pages and licence are there" confined --entrypoint sh "$name" -c \
    'test -s /opt/primus/share/man/man1/primus.1.gz && test -s /opt/primus/share/doc/primus/copyright'
  check "a training of three steps" train "$name" 1
  check "with two ranks" train "$name" 2
  if [ "$image" = rocm ]; then
    check "its plug-in is there" prints libprimus_hip.so confined --entrypoint ls "$name" /opt/primus/lib/primus
  fi
done

if [ -n "$apptainer" ]; then
  echo "== apptainer"
  rm -rf build/apptainer
  cmake --install build --prefix build/apptainer/opt/primus --strip >"$place/apptainer.log"
  definition=packaging/apptainer/primus.def
  if [ -n "$bootstrap" ]; then
    # Builds the definition on the base image that --bootstrap made.
    podman save --quiet --format oci-archive --output "$place/base.tar" localhost/debian:bookworm-slim
    sed "s|^Bootstrap: docker|Bootstrap: oci-archive|; s|^From: .*|From: $place/base.tar|" $definition >"$place/primus.def"
    definition=$place/primus.def
  fi
  check "the Apptainer image is built" apptainer build --force "$place/primus.sif" "$definition"
  check "and runs" prints "$version" apptainer run "$place/primus.sif" version
  check "its devices" prints cpu apptainer run "$place/primus.sif" device list
  check "a training of three steps" train_by_apptainer
fi

[ $failed = 0 ] && echo "images are in order"
exit $failed
