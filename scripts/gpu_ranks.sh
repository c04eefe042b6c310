#!/bin/sh
# Tests training on several GPUs of this machine: losses equal to one GPU's, at every sharding level and with
# ranks that share layers, experts, sequences and stages; the rate per GPU compared with one GPU in the same
# run; and the behavior when a rank is killed. Prints a line per test.
#
#   scripts/gpu_ranks.sh [GPUS] [PRIMUS]     2 GPUs and build/bin/primus by default; the plug-in is in ../lib/primus
#
# ROWS selects the tests, which run in this order:
#   losses      tiny models: fp32 losses of 20 steps equal one GPU's, at the sharding levels LEVELS and on every mesh
#   overlap     the same with tensor-parallel communication overlapped with products: off, by the library, by copy engines
#   replicated, sharded, tensor, library, pipeline
#               Llama 3.1 8B with LAYERS layers, sequence 8192, 4 sequences per GPU and step: data-parallel, fully sharded,
#               tensor-parallel over all GPUs (by copy engines, or by the library), or in stages; compared with one GPU
#   context     the same model with CONTEXT_LAYERS layers at sequence 32768, context-parallel; compared with one GPU
#   context_gather, context_by_heads, context_optim
#               like context, with cp_comm_type all_gather and a2a, and with sharded optimizer states (not run by default)
#   mixtral, deepseek
#               Mixtral 8x7B with 2 layers and DeepSeek-V2-Lite with 5, expert-parallel; compared with data-parallel
#   margins     DeepSeek-V2-Lite of that size, expert-parallel, with activations for all rows, for 1.5 and for 0.5 times the
#               equal share of rows, with rows sent by all-to-all, and with transfers that overlap another microbatch, too;
#               compared with data-parallel (not run by default)
#   dispatch    the same DeepSeek-V2-Lite, whose tokens travel by all-to-all: complete parts, the way that Primus chooses,
#               direct writes, counted rows, counted rows in fp8; compared with an all-gather (not run by default)
#   ways        a tiny mixture of experts whose tokens travel by an all-gather, and by all-to-all in each way: losses and
#               gradient norms of 12 steps have equal digits (not run by default)
#   peer        PyTorch's FSDP on the model of `sharded`: torchrun with benchmarks/peers/torch_fsdp.py, or the one in PEERS;
#               run by default if torchrun is installed
#   killed      killing one rank ends all of them
# PRESET replaces Llama 3.1 8B by another dense model, with SEQUENCE tokens. STEPS: number of steps of each
# timed run, before the two traced steps that give its rate. TRACE=1 prints how much communication was exposed in the
# traced steps, TRACE=kernels also each kernel's time. KEEP is an empty folder in which the runs are kept. RECORDS (of
# margins) and ENDS: see scripts/records.sh. Exits 1 if a test fails.
set -eu
cd "$(dirname "$0")/.."
gpus=${1:-2}
primus=${2:-build/bin/primus}
preset=${PRESET:-llama3.1_8B-BF16-pretrain.yaml}
steps=${STEPS:-8}
layers=${LAYERS:-16}
sequence=${SEQUENCE:-8192}
peers=${PEERS:-benchmarks/peers}
peer=
! command -v torchrun >/dev/null || peer=" peer"
rows=${ROWS-losses overlap replicated sharded tensor library pipeline context mixtral deepseek$peer killed}
levels=${LEVELS-no_shard optim optim_grads optim_grads_params}
if [ -n "${KEEP:-}" ]; then
  scratch=$KEEP
  mkdir -p "$scratch"
else
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
fi
failed=0
. scripts/records.sh
. scripts/find_nccl.sh
configs=examples/native/configs
tiny=$configs/CPU/llama_tiny-pretrain.yaml

# run NAME CONFIG WORD...: trains; its metrics are in $scratch/w/u/NAME/metrics.jsonl.
run() {
  name=$1
  config=$2
  shift 2
  within "${LIMIT:-150}" "$primus" train pretrain --config "$config" --plain device=cuda workspace="$scratch" work_group=w \
    user_name=u exp_name="$name" disable_last_saving=true "$@" >"$scratch/$name.log" 2>&1 || {
    failed=1
    echo "FAILED  $name"
    tail -n 12 "$scratch/$name.log"
    record "$name" failed "$scratch/$name.log"
    return 1
  }
}

# number NAME KEY STEP: prints the metric KEY of that step.
number() { sed -n -E "$3"'s/.*"'"$2"'":([-+.0-9e]+).*/\1/p' "$scratch/w/u/$1/metrics.jsonl"; }

# compare NAME: compares the loss of the run NAME with $one, the loss of one GPU.
compare() {
  loss=$(number "$1" lm_loss 20)
  if awk "BEGIN { d = ($loss - $one) / $one; exit !(d < 1e-5 && d > -1e-5) }"; then
    echo "ok      $1 on $gpus GPUs: loss $loss after 20 steps, on one GPU $one"
  else
    failed=1
    echo "FAILED  $1 on $gpus GPUs: loss $loss after 20 steps, on one GPU $one"
  fi
}

# settings_of MESH: prints the settings for $gpus ranks with this mesh.
settings_of() {
  case $1 in
    replicated) echo "reduce_gradients_each_microbatch=false" ;;
    sharded) echo "data_parallel_sharding_strategy=optim_grads_params reduce_gradients_each_microbatch=false" ;;
    tensor | library) echo "tensor_model_parallel_size=$gpus" ;;
    context) echo "context_parallel_size=$gpus" ;;
    context_gather) echo "context_parallel_size=$gpus cp_comm_type=all_gather" ;;
    context_by_heads) echo "context_parallel_size=$gpus cp_comm_type=a2a" ;;
    context_optim) echo "context_parallel_size=$gpus data_parallel_sharding_strategy=optim" ;;
    pipeline) echo "pipeline_model_parallel_size=$gpus" ;;
    expert) echo "expert_model_parallel_size=$gpus expert_tensor_parallel_size=1" ;;
    *) echo "tensor_model_parallel_size=$gpus expert_model_parallel_size=$gpus expert_tensor_parallel_size=1" ;;
  esac
}

losses() {
  common="bf16=false train_iters=20 micro_batch_size=2 global_batch_size=16 seq_length=64"
  # shellcheck disable=SC2086
  run one $tiny $common || return 0
  one=$(number one lm_loss 20)
  for level in $levels; do
    # shellcheck disable=SC2086
    run "$level" $tiny $common --nproc "$gpus" data_parallel_sharding_strategy="$level" && compare "$level"
  done
  # Trains with ranks that share layers, experts, sequences or stages.
  mixture="model_type=mixtral num_experts=4 moe_router_topk=2 ffn_hidden_size=256 num_attention_heads=4 num_query_groups=4"
  # shellcheck disable=SC2086
  run one_mixture $tiny $common $mixture || return 0
  one=$(number one_mixture lm_loss 20)
  for mesh in tensor expert tensor_expert context context_by_heads pipeline; do
    # shellcheck disable=SC2046,SC2086
    # The prefix distinguishes these folders from the folders of rows.
    run "tiny_$mesh" $tiny $common $mixture --nproc "$gpus" $(settings_of $mesh) && compare "tiny_$mesh"
  done
}

# Uses enough tokens for collectives of 8 MiB, the minimum size for overlap.
overlap() {
  common="bf16=false train_iters=20 micro_batch_size=32 global_batch_size=64 seq_length=512"
  # shellcheck disable=SC2086
  run one_wide $tiny $common || return 0
  one=$(number one_wide lm_loss 20)
  # shellcheck disable=SC2046,SC2086
  {
    run apart $tiny $common --nproc "$gpus" $(settings_of tensor) tp_comm_overlap=false && compare apart
    PRIMUS_COPY_ENGINES=off run by_library $tiny $common --nproc "$gpus" $(settings_of tensor) && compare by_library
    PRIMUS_COPY_ENGINES=on run by_copies $tiny $common --nproc "$gpus" $(settings_of tensor) && compare by_copies
    PRIMUS_COPY_ENGINES=on run by_copies_again $tiny $common --nproc "$gpus" $(settings_of tensor) && compare by_copies_again
  }
  copy_engines_of by_copies
}

# copy_engines_of NAME: prints whether the run's tensor-parallel ranks used copy engines.
copy_engines_of() {
  grep -h -o "tensor ranks communicate .*" "$scratch/w/u/$1/logs/pre_trainer/rank-0/info.log" "$scratch/$1.log" | head -n 1
}

# memory_of NAME: prints the device memory that the run used and the memory that the log's first lines planned (arenas
# and libraries), in GB.
memory_of() {
  planned=$(sed -n -E 's/.* memory: ([0-9]+) MiB persistent.*, ([0-9]+) MiB stash.*, ([0-9]+) MiB scratch, about ([0-9]+) MiB.*/\1 \2 \3 \4/p' \
    "$scratch/w/u/$1/logs/pre_trainer/rank-0/info.log" | head -n 1 | awk '{ printf "%.1f", ($1 + $2 + $3 + $4) * 1048576 / 1e9 }')
  echo "$(number "$1" memory_used_bytes "$steps" | awk '{ printf "%.1f", $1 / 1e9 }') GB used, $planned planned"
}

# Makes data of random tokens, below every vocabulary size used here. The sequences of mock_data count upwards, which
# would give too high a rate: a power-limited GPU multiplies repetitive numbers faster.
random_data() {
  [ ! -e "$scratch/random_text_document.idx" ] || return 0
  awk 'BEGIN { srand(1); for (line = 0; line < 400; ++line) { printf "{\"text\": \""; for (i = 0; i < 4096; ++i)
    printf "%d ", rand() * 31999; print "\"}" } }' >"$scratch/random.jsonl"
  "$primus" data tokenize -i "$scratch/random.jsonl" -o "$scratch/random" --tokenizer-type NullTokenizer \
    --vocab-size 32000 >"$scratch/random.log" 2>&1
}

# timed NAME CONFIG WORD...: runs a timed training, unless it has been done already.
timed() {
  [ ! -e "$scratch/w/u/$1/metrics.jsonl" ] || return 0
  label=$1
  config=$2
  shift 2
  all=$((steps + 2))
  traced_ranks='[0]'
  [ "${TRACE:-}" != kernels ] || traced_ranks=all
  random_data
  run "$label" "$config" mock_data=false data_path="$scratch/random_text_document" tokenizer_type=NullTokenizer \
    tokenizer_model=null async_save=false deterministic_mode=false train_iters=$all eval_iters=0 \
    profile=true profile_step_start="$steps" profile_step_end="$all" profile_ranks="$traced_ranks" "$@"
}

# rate NAME KEY: tokens_per_second or tflops per GPU in the traced steps. Rate and time of the metrics give the work per
# step, and the trace gives the time of the traced steps.
rate() {
  seconds=$(python3 scripts/exposed_communication.py "$scratch/w/u/$1" --step-seconds)
  echo "$(number "$1" "$2_per_device" "$steps") $(number "$1" elapsed_time_per_iteration_ms "$steps") $seconds" |
    awk '{ printf "%.0f", $1 * $2 / 1000 / $3 }'
}

# traced NAME: prints the output requested by TRACE.
traced() {
  case ${TRACE:-} in
    "") ;;
    kernels) python3 scripts/exposed_communication.py "$scratch/w/u/$1" --calls --kernels ;;
    *) python3 scripts/exposed_communication.py "$scratch/w/u/$1" --calls ;;
  esac
}

# alone NAME: prints the baseline rate, with which other rows are compared.
alone() {
  echo "$1: $(rate "$1" tokens_per_second) tokens/s of each GPU, $(rate "$1" tflops) TFLOP/s, $(memory_of "$1")"
  [ "${TRACE:-}" != kernels ] || traced "$1"
}

# beside NAME OTHER: prints the rate per GPU as a share of the rate of the run OTHER.
beside() {
  each=$(rate "$1" tokens_per_second)
  echo "$1 on $gpus GPUs: $each tokens/s each, $(
    awk "BEGIN { printf \"%.3f\", $each / $(rate "$2" tokens_per_second) }"
  ) of $2, $(memory_of "$1")"
  traced "$1"
}

# dense ROW WORD...: times the dense model on all GPUs, and compares the rate with one GPU's.
dense() {
  row=$1
  shift
  config=$configs/any/$preset
  common="num_layers=$layers seq_length=$sequence micro_batch_size=1"
  # shellcheck disable=SC2046,SC2086
  if [ ! -e "$scratch/w/u/one_dense" ]; then
    timed one_dense "$config" $common global_batch_size=4 || return 0
    alone one_dense
  fi
  # shellcheck disable=SC2046,SC2086
  timed "$row" "$config" $common global_batch_size=$((4 * gpus)) --nproc "$gpus" $(settings_of "$row") "$@" &&
    beside "$row" one_dense
}

# Each stage computes its blocks. The last stage also computes the head. The head takes as long as
# two blocks of Llama 3.1 8B, so the last stage gets two blocks fewer. With N microbatches, a
# schedule's bubble is (GPUS - 1) / (N + GPUS - 1).
pipeline() {
  last=$(((layers + 2) / gpus - 2))
  dense pipeline decoder_last_pipeline_num_layers=$last
  echo "pipeline: without its bubble a GPU has $(awk "BEGIN { printf \"%.3f\", 4 * $gpus / (5 * $gpus - 1) }") of its time"
}

# context ROW
context() {
  config=$configs/any/$preset
  common="num_layers=${CONTEXT_LAYERS:-8} seq_length=32768 micro_batch_size=1"
  # shellcheck disable=SC2086
  if [ ! -e "$scratch/w/u/one_long" ]; then
    timed one_long "$config" $common global_batch_size=2 || return 0
    alone one_long
  fi
  # shellcheck disable=SC2046,SC2086
  timed "$1" "$config" $common global_batch_size=$((2 * gpus)) --nproc "$gpus" $(settings_of "$1") && beside "$1" one_long
}

# experts NAME CONFIG WORD...: times expert-parallel training, and compares the rate with data-parallel training.
experts() {
  row=$1
  shift
  timed "$row-data" "$@" global_batch_size=$((8 * gpus)) --nproc "$gpus" reduce_gradients_each_microbatch=false || return 0
  alone "$row-data"
  # shellcheck disable=SC2046
  timed "$row" "$@" global_batch_size=$((8 * gpus)) --nproc "$gpus" reduce_gradients_each_microbatch=false \
    $(settings_of expert) && beside "$row" "$row-data"
}

# margins: a forecast gives the memory of equal shares.
margins() {
  set -- $configs/any/deepseek_v2_lite-BF16-pretrain.yaml num_layers=5 'moe_layer_freq=([0]*1+[1]*4)' seq_length=4096 \
    micro_batch_size=4 global_batch_size=$((8 * gpus)) reduce_gradients_each_microbatch=false
  timed margin-none "$@" --nproc "$gpus" || return 0
  alone margin-none
  code=0
  for margin in 1000 1.5 0.5 alltoall overlap; do
    case $margin in
      alltoall) words="moe_expert_capacity_margin=1.5 moe_token_dispatcher_type=alltoall" ;;
      overlap) words="$words overlap_moe_expert_parallel_comm=true" ;;
      *) words="moe_expert_capacity_margin=$margin" ;;
    esac
    # shellcheck disable=SC2046,SC2086
    timed "margin-$margin" "$@" --nproc "$gpus" $(settings_of expert) $words || {
      code=1
      continue
    }
    beside "margin-$margin" margin-none
    # shellcheck disable=SC2046,SC2086
    "$primus" train pretrain --config "$@" --dry-run --json --hardware "${HARDWARE:-h100}" --world "$gpus" \
      deterministic_mode=false $(settings_of expert) $words >"$scratch/plan" 2>/dev/null || code=1
    python3 - "$scratch" "$margin" "$(rate "margin-$margin" tokens_per_second)" "$(rate margin-none tokens_per_second)" \
      "$(number "margin-$margin" memory_used_bytes "$steps")" >"$scratch/mesh" <<'MESH'
import json, pathlib, sys

folder, margin = pathlib.Path(sys.argv[1]), sys.argv[2]
trace = json.loads(next((folder / "w" / "u" / f"margin-{margin}").glob("traces/*/rank-0.json")).read_text())
steps = trace["primus"]["last_step"] - trace["primus"]["first_step"] + 1
calls = [e["args"] for e in trace["traceEvents"] if e.get("cat") == "communication"]
plan = json.loads((folder / "plan").read_text())["memory_bytes"]
result = {
    "rate": float(sys.argv[3]), "beside": float(sys.argv[4]), "memory_used": float(sys.argv[5]),
    "equal_shares": plan["device_with_equal_shares_of_experts"] + plan["program"],
    "bytes_per_step": sum(c["bytes"] for c in calls if c["group"].split(".")[0] == "experts") / steps,
    # 4 layers with experts and 8 sequences of 4096 tokens per GPU and step, of 2048 numbers of 2 bytes. A token's row is
    # sent and returned in both passes.
    "row_bytes_per_step": 4 * 4 * 8 * 4096 * 2048 * 2,
}
print(json.dumps(result))
MESH
    record "margin-$margin" mesh "$scratch/mesh"
  done
  return $code
}

# dispatch WORD...: times the ways in which tokens reach experts.
dispatch() {
  # shellcheck disable=SC2046
  set -- "$@" global_batch_size=$((8 * gpus)) --nproc "$gpus" reduce_gradients_each_microbatch=false $(settings_of expert)
  timed gathered "$@" || return 0
  alone gathered
  set -- "$@" moe_token_dispatcher_type=alltoall
  export PRIMUS_COUNTED_ROWS=off
  timed complete "$@" && beside complete gathered
  export PRIMUS_COUNTED_ROWS=auto
  timed automatic "$@" && beside automatic gathered
  export PRIMUS_COUNTED_ROWS=direct
  timed direct "$@" && beside direct gathered
  export PRIMUS_COUNTED_ROWS=on
  timed counted "$@" && beside counted gathered
  timed coded "$@" moe_dispatch_fp8=true && beside coded gathered
  unset PRIMUS_COUNTED_ROWS
}

# digits NAME: a checksum of the losses and gradient norms of a run.
digits() { grep -oE '"(lm_loss|grad_norm)":[-+.0-9e]+' "$scratch/w/u/$1/metrics.jsonl" | sha256sum | cut -c 1-16; }

# way NAME COUNTED WORD...: trains the tiny mixture with PRIMUS_COUNTED_ROWS=COUNTED. Unless NAME is `way-gathered`, its
# digits must be those of that run.
way() {
  name=$1
  export PRIMUS_COUNTED_ROWS="$2"
  shift 2
  # shellcheck disable=SC2046
  run "$name" $tiny train_iters=12 micro_batch_size=2 global_batch_size=16 seq_length=64 model_type=mixtral num_experts=4 \
    moe_router_topk=2 ffn_hidden_size=256 num_attention_heads=4 num_query_groups=4 --nproc "$gpus" $(settings_of expert) "$@" ||
    return 0
  unset PRIMUS_COUNTED_ROWS
  if [ "$(digits "$name")" = "$(digits way-gathered)" ]; then
    echo "ok      $name: losses and gradient norms as by an all-gather"
  else
    failed=1
    echo "FAILED  $name: losses or gradient norms differ from those by an all-gather"
  fi
}

ways() {
  way way-gathered on
  for counted in off on direct auto; do way "way-$counted" $counted moe_token_dispatcher_type=alltoall; done
  for counted in on direct; do
    way "way-$counted-overlap" $counted moe_token_dispatcher_type=alltoall overlap_moe_expert_parallel_comm=true
  done
  way way-direct-margin direct moe_token_dispatcher_type=alltoall moe_expert_capacity_margin=0.5
}

peer() {
  if ! timeout "${LIMIT:-150}" torchrun --nproc-per-node "$gpus" "$peers/torch_fsdp.py" "$layers" "$sequence" 1 4 0 \
    >"$scratch/peer.log" 2>&1; then
    failed=1
    echo "FAILED  peer"
    tail -n 12 "$scratch/peer.log"
    return 0
  fi
  grep -h PEER "$scratch/peer.log"
}

killed() {
  "$primus" train pretrain --config $tiny --plain device=cuda workspace="$scratch" work_group=w user_name=u exp_name=killed \
    train_iters=100000 save_interval=100000 global_batch_size=16 micro_batch_size=2 --nproc "$gpus" >"$scratch/killed.log" 2>&1 &
  launcher=$!
  waited=0
  while [ ! -s "$scratch/w/u/killed/metrics.jsonl" ] && [ $waited -lt 60 ]; do
    sleep 1
    waited=$((waited + 1))
  done
  victim=$(pgrep -P $launcher | tail -n 1)
  if [ -z "$victim" ] || [ $waited = 60 ]; then
    kill "$launcher"
    echo "FAILED  killed: no rank trains"
    return 1
  fi
  kill -9 "$victim"
  death=$(date +%s%N)
  code=0
  wait $launcher || code=$?
  echo "a rank was killed: all ended after $((($(date +%s%N) - death) / 1000000)) ms with exit code $code"
  grep -h "was killed by signal 9" "$scratch/killed.log" | head -n 1 || failed=1
}

for row in $rows; do
  began=$(date +%s)
  case $row in
    losses) losses ;;
    overlap) overlap ;;
    pipeline) pipeline ;;
    context | context_gather | context_by_heads | context_optim) context "$row" ;;
    peer) peer ;;
    margins) margins ;;
    killed) killed ;;
    ways) ways ;;
    replicated | sharded) dense "$row" ;;
    tensor)
      dense tensor
      copy_engines_of tensor
      ;;
    library) PRIMUS_COPY_ENGINES=off dense library ;;
    mixtral) experts mixtral $configs/any/mixtral_8x7B_v0.1-BF16-pretrain.yaml num_layers=2 seq_length=4096 micro_batch_size=2 ;;
    deepseek)
      experts deepseek $configs/any/deepseek_v2_lite-BF16-pretrain.yaml num_layers=5 'moe_layer_freq=([0]*1+[1]*4)' \
        seq_length=4096 micro_batch_size=4
      ;;
    dispatch)
      dispatch $configs/any/deepseek_v2_lite-BF16-pretrain.yaml num_layers=5 'moe_layer_freq=([0]*1+[1]*4)' \
        seq_length=4096 micro_batch_size=4
      ;;
    *)
      echo "unknown row: $row" >&2
      exit 2
      ;;
  esac || failed=1
  echo "($row: $(($(date +%s) - began)) s)"
done
exit $failed
