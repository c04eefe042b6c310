#!/bin/sh
# Training on several GPUs of this machine: the same losses as on one GPU, on every level of sharding and where ranks
# share layers, experts, sequences and stages; the rate of each GPU beside that of one GPU in the same run; and what
# happens when a rank is killed. One line each.
#
#   scripts/gpu_ranks.sh [GPUS] [PRIMUS]     2 GPUs and build/bin/primus by default; the plug-in in ../lib/primus beside it
#
# PRESET chooses the experiment that is timed (examples/native/configs/any), STEPS how long, LEVELS and MESHES what else
# than one GPU. Exits 1 if something fails.
set -eu
cd "$(dirname "$0")/.."
gpus=${1:-2}
primus=${2:-build/bin/primus}
preset=${PRESET:-llama3.2_1B-BF16-pretrain.yaml}
steps=${STEPS:-12}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
# Where the library is not among the system's, PyTorch has one.
if ! ldconfig -p | grep -q 'libnccl\.so\.2'; then
  beside=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' 2>/dev/null || true)
  [ -z "$beside" ] || export LD_LIBRARY_PATH="$beside${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
levels=${LEVELS-no_shard optim optim_grads optim_grads_params}
meshes=${MESHES-tensor context pipeline}

# run NAME CONFIG WORD...: trains; its metrics are in $scratch/w/u/NAME/metrics.jsonl.
run() {
  name=$1
  config=$2
  shift 2
  timeout "${LIMIT:-150}" "$primus" train pretrain --config "$config" --plain device=cuda workspace="$scratch" work_group=w \
    user_name=u exp_name="$name" disable_last_saving=true "$@" >"$scratch/$name.log" 2>&1 || {
    failed=1
    echo "FAILED  $name"
    tail -n 12 "$scratch/$name.log"
  }
}

# number NAME KEY: of the last step.
number() { tail -n 1 "$scratch/w/u/$1/metrics.jsonl" | sed -E "s/.*\"$2\":([-+.0-9e]+).*/\1/"; }

# compare NAME: its loss and $one, that of one GPU.
compare() {
  loss=$(number "$1" lm_loss)
  if awk "BEGIN { d = ($loss - $one) / $one; exit !(d < 1e-5 && d > -1e-5) }"; then
    echo "ok      $1 on $gpus GPUs: loss $loss after 20 steps, on one GPU $one"
  else
    failed=1
    echo "FAILED  $1 on $gpus GPUs: loss $loss after 20 steps, on one GPU $one"
  fi
}

tiny=examples/native/configs/CPU/llama_tiny-pretrain.yaml
common="bf16=false train_iters=20 micro_batch_size=2 global_batch_size=16 seq_length=64"
# shellcheck disable=SC2086
run one $tiny $common
one=$(number one lm_loss)
for level in $levels; do
  # shellcheck disable=SC2086
  run "$level" $tiny $common --nproc "$gpus" data_parallel_sharding_strategy="$level"
  compare "$level"
done

# settings_of MESH: of $gpus ranks that share a model in this way.
settings_of() {
  case $1 in
    tensor) echo "tensor_model_parallel_size=$gpus" ;;
    context) echo "context_parallel_size=$gpus" ;;
    context_by_heads) echo "context_parallel_size=$gpus cp_comm_type=a2a" ;;
    pipeline) echo "pipeline_model_parallel_size=$gpus" ;;
    expert) echo "expert_model_parallel_size=$gpus expert_tensor_parallel_size=1" ;;
    *) echo "tensor_model_parallel_size=$gpus expert_model_parallel_size=$gpus expert_tensor_parallel_size=1" ;;
  esac
}

# Ranks that share layers, experts, sequences or stages instead.
mixture="model_type=mixtral num_experts=4 moe_router_topk=2 ffn_hidden_size=256 num_attention_heads=4 num_query_groups=4"
# shellcheck disable=SC2086
run one_mixture $tiny $common $mixture
one=$(number one_mixture lm_loss)
for mesh in tensor expert tensor_expert context context_by_heads pipeline; do
  # shellcheck disable=SC2046,SC2086
  run "$mesh" $tiny $common $mixture --nproc "$gpus" $(settings_of $mesh)
  compare "$mesh"
done

config=examples/native/configs/any/$preset
timed="mock_data=true train_iters=$steps micro_batch_size=1 seq_length=4096 log_avg_skip_iterations=4 eval_iters=0"
# shellcheck disable=SC2086
run timed1 "$config" $timed global_batch_size=4
rate=$(number timed1 tokens_per_second_per_device_avg)
echo "$preset on one GPU: $rate tokens/s, $(number timed1 tflops_per_device_avg) TFLOP/s, $(number timed1 memory_used_bytes) bytes"
for level in $levels; do
  # shellcheck disable=SC2086
  run "timed-$level" "$config" $timed global_batch_size=$((4 * gpus)) --nproc "$gpus" \
    data_parallel_sharding_strategy="$level" reduce_gradients_each_microbatch=false
  each=$(number "timed-$level" tokens_per_second_per_device_avg)
  echo "$preset $level on $gpus GPUs: $each tokens/s each, $(awk "BEGIN { printf \"%.3f\", $each / $rate }") of one GPU, $(
    number "timed-$level" memory_used_bytes
  ) bytes"
done

for mesh in $meshes; do
  # shellcheck disable=SC2046,SC2086
  run "timed-$mesh" "$config" $timed global_batch_size=$((4 * gpus)) --nproc "$gpus" $(settings_of "$mesh")
  each=$(number "timed-$mesh" tokens_per_second_per_device_avg)
  echo "$preset $mesh on $gpus GPUs: $each tokens/s each, $(awk "BEGIN { printf \"%.3f\", $each / $rate }") of one GPU, $(
    number "timed-$mesh" memory_used_bytes
  ) bytes"
done

# A rank that is killed ends all.
"$primus" train pretrain --config $tiny --plain device=cuda workspace="$scratch" work_group=w user_name=u exp_name=killed \
  train_iters=100000 save_interval=100000 global_batch_size=16 micro_batch_size=2 --nproc "$gpus" >"$scratch/killed.log" 2>&1 &
launcher=$!
sleep 15
victim=$(pgrep -P $launcher | tail -n 1)
[ -z "$victim" ] || kill -9 "$victim"
began=$(date +%s%N)
code=0
wait $launcher || code=$?
echo "a rank was killed: all ended after $((($(date +%s%N) - began) / 1000000)) ms with exit code $code"
grep -h "was killed by signal 9" "$scratch/killed.log" | head -n 1 || failed=1
exit $failed
