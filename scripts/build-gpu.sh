#!/bin/sh
# Compiles the GPU kernels, whose sources all vendors share, and links the plug-in of one vendor.
#
#   scripts/build-gpu.sh cuda [ARCH...]   build/lib/primus/libprimus_cuda.so with nvcc 13, for 80 90a 100 by default
#   scripts/build-gpu.sh hip  [ARCH...]   build/lib/primus/libprimus_hip.so with clang 19, for gfx90a gfx942 by default
#
# Needs build/ (scripts/build.sh) for the host libraries and the lists of kernels and operators. HIP needs the packages
# of the group "hip" (scripts/install-packages.sh hip). JOBS sets the number of parallel compilers (default: one per core).
set -eu
cd "$(dirname "$0")/.."

usage() {
  sed -n '2,8s/^# \{0,1\}//p' "$0"
}
case "${1:-}" in
  cuda | hip) vendor=$1 ;;
  -h | --help)
    usage
    exit 0
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac
shift

folder=build/gpu/$vendor
mkdir -p "$folder"
ccache=$(command -v ccache || true)
includes="-Isrc -Ibuild/src/turbo/generated -Ibuild/src/turbo/devices/generated"
# Kernels fuse multiply-adds only where the source does so explicitly. The plug-in is always built with -O3.
common="-std=c++20 -O3 $includes -fPIC"
if [ "$vendor" = cuda ]; then
  PATH=$PATH:/usr/local/cuda/bin
  command -v nvcc >/dev/null || {
    echo "nvcc is missing: install CUDA 13 and put its bin folder on the PATH" >&2
    exit 1
  }
  flags="-std=c++20 -O3 $includes -Xcompiler -fPIC,-fvisibility=hidden --expt-relaxed-constexpr --fmad=false -lineinfo"
  for arch in "${@:-80 90a 100}"; do
    for one in $arch; do flags="$flags -gencode=arch=compute_$one,code=sm_$one"; done
  done
  compiler="$ccache nvcc $flags"
else
  clang=${HIP_CLANG:-clang++-19}
  command -v "$clang" >/dev/null || {
    echo "$clang is missing: run scripts/install-packages.sh hip" >&2
    exit 1
  }
  # Debian's device libraries 5.2.3 list gfx940, but not gfx942. Both have the same instructions.
  bitcode=/usr/lib/x86_64-linux-gnu/amdgcn/bitcode
  library=$folder/devlib
  mkdir -p "$library"
  ln -sf "$bitcode"/*.bc "$library"/
  if [ ! -e "$library/oclc_isa_version_942.bc" ]; then
    {
      echo 'target triple = "amdgcn-amd-amdhsa"'
      echo '@__oclc_ISA_version = linkonce_odr protected local_unnamed_addr addrspace(4) constant i32 9402, align 4'
    } >"$library/isa942.ll"
    "${clang%++*}${clang#*++}" --target=amdgcn-amd-amdhsa -nogpulib -Wno-override-module -x ir "$library/isa942.ll" \
      -c -emit-llvm -o "$library/oclc_isa_version_942.bc"
  fi
  flags="$common -fvisibility=hidden -x hip -ffp-contract=off --rocm-path=/usr --rocm-device-lib-path=$PWD/$library"
  for arch in "${@:-gfx90a gfx942}"; do
    for one in $arch; do flags="$flags --offload-arch=$one"; done
  done
  compiler="$clang $flags"
fi

# One source file per line. Each file is compiled to one object.
sources=$(find src/device/gpu src/turbo -name '*.cu' | sort)
# The words of $compiler and $sources are separate arguments; the inner shell expands its own variables.
# shellcheck disable=SC2086,SC2016
printf '%s\n' $sources | xargs -P "${JOBS:-$(nproc)}" -I{} sh -c '
  object=$1/$(echo "$2" | tr / _).o
  $3 -c "$2" -o "$object"
' sh "$folder" {} "$compiler"

objects=$(for source in $sources; do echo "$folder/$(echo "$source" | tr / _).o"; done)
floors="build/src/turbo/libprimus_turbo.a build/src/device/libprimus_device.a build/src/tensor/libprimus_tensor.a
  build/src/base/libprimus_base.a"
mkdir -p build/lib/primus
output=build/lib/primus/libprimus_$vendor.so
if [ "$vendor" = cuda ]; then
  # shellcheck disable=SC2086
  ${CXX:-g++} -shared -o "$output" $objects $floors -L"$(dirname "$(command -v nvcc)")/../lib64" -lcudart_static -ldl \
    -lrt -lpthread -Wl,--exclude-libs,ALL
else
  # shellcheck disable=SC2086
  ${CXX:-g++} -shared -o "$output" $objects $floors -lamdhip64 -ldl -lpthread -Wl,--exclude-libs,ALL
fi
echo "$output: $(stat -c %s "$output") bytes"
