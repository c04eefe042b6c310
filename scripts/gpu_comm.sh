#!/bin/sh
# Tests communication between several GPUs of this machine: every collective against its reference, the
# behavior when a rank hangs, fails or is killed, the time of sending rows to experts, and the speed of collectives.
#
#   scripts/gpu_comm.sh [GPUS] [OUTPUT_FOLDER]     2 GPUs by default; the plug-in lies in build/lib/primus
#
# Needs build/tests/comm_rank_program (ninja -C build comm_rank_program) and, for the speed,
# build/bin/comm_bench (configured with -DPRIMUS_BENCHMARKS=ON); both may be built on another machine. DEVICE
# selects another device kind than cuda; if it is empty, the script tests itself on the CPU. Exits 1 if a test fails.
set -eu
cd "$(dirname "$0")/.."
gpus=${1:-2}
out=${2:-build/gpu/check}
device=${DEVICE-cuda}
program=build/tests/comm_rank_program
mkdir -p "$out"
failed=0
[ "$device" != cuda ] || . scripts/find_nccl.sh

# ranks SCENE: runs one process per GPU; their output goes to $out/SCENE-RANK.log, their exit codes to $codes.
ranks() {
  port=$((20000 + $$ % 20000 + port_offset))
  port_offset=$((port_offset + 1))
  pids=
  rank=0
  while [ $rank -lt "$gpus" ]; do
    DEVICE=$device RANK=$rank WORLD_SIZE=$gpus LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$gpus MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=$port PRIMUS_JOB_TOKEN=gpu_comm timeout 120 "$program" "$1" auto "$out/flight-$1" \
      >"$out/$1-$rank.log" 2>&1 &
    pids="$pids $!"
    rank=$((rank + 1))
  done
  codes=
  for pid in $pids; do
    code=0
    wait "$pid" || code=$?
    codes="$codes $code"
  done
}
port_offset=0

# check SCENE TEXT: checks that every rank ends with an error that contains TEXT.
check() {
  ranks "$1"
  rank=0
  good=1
  while [ $rank -lt "$gpus" ]; do
    case "$1-$rank" in
      die*-$((gpus - 1))) ;; # the rank that was killed
      *) grep -qE -- "$2" "$out/$1-$rank.log" || good=0 ;;
    esac
    rank=$((rank + 1))
  done
  if [ $good = 1 ]; then
    echo "ok      $1: $(grep -hoE -- "$2" "$out/$1-0.log" | head -n 1)"
  else
    failed=1
    echo "FAILED  $1, exit codes$codes"
    tail -n 4 "$out/$1"-*.log
  fi
}

# conforms SCENE TEXT: checks that every rank succeeds; TEXT describes the check.
conforms() {
  ranks "$1"
  case "$codes" in
    *[!\ 0]*)
      failed=1
      echo "FAILED  $1, exit codes$codes"
      tail -n 8 "$out/$1"-*.log
      ;;
    *) echo "ok      $2" ;;
  esac
}

conforms conform "every collective in five types, in and out of place, also in groups of half the ranks"
conforms conform_tensor "the same of tensor ranks"
grep -h "copy engines" "$out/conform_tensor-0.log"
export PRIMUS_COUNTED_ROWS=direct
conforms conform "the same with kernels that write rows to the memory of other GPUs"
unset PRIMUS_COUNTED_ROWS
check hang 'rank 1 has not called it: its last collective in that group was barrier #1'
check stuck "exchange #2 .* of group 'tensor.0' did not complete within"
check fail 'the data set of rank 1 is broken'
check die "rank $((gpus - 1)) was lost|rank $((gpus - 1)) ended"
export PRIMUS_COUNTED_ROWS=direct
check die_sending_rows "rank $((gpus - 1)) was lost|rank $((gpus - 1)) ended"
unset PRIMUS_COUNTED_ROWS
for counted in on off direct; do
  export PRIMUS_COUNTED_ROWS=$counted
  ranks time_rows
  echo "all_to_all_rows with PRIMUS_COUNTED_ROWS=$counted"
  cat "$out/time_rows-0.log"
done
unset PRIMUS_COUNTED_ROWS
if [ -x build/bin/comm_bench ] && [ -n "$device" ]; then
  timeout 200 build/bin/comm_bench --ranks "$gpus" --transport gpu --megabytes 256 2>&1 | tee "$out/comm_bench.log"
fi
exit $failed
