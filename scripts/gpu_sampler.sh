#!/bin/sh
# Verifies on a GPU that the sampler and the trainer of reinforcement learning agree bit for bit with batch_invariant:
# trains tiny Llamas and mixtures of experts in bf16 by GRPO, without adapters and with LoRA adapters of several ranks, and
# reads from each step the mean and the largest difference between the log-probabilities of the decoder and of the
# training pass, which must be exactly 0. Without batch_invariant, the difference must be larger than 0, so that the check
# itself is checked.
#
#   scripts/gpu_sampler.sh [RANK]...             ranks of adapters (none 8 16 64 96 by default; none: without adapters)
#   GPUS=2 scripts/gpu_sampler.sh [RANK]...      the same on the meshes of two GPUs (none 8 by default)
#
# Needs build/bin/primus and the plug-in next to it. PRIMUS sets another program, DEVICE another device, MODELS the
# models (narrow wide mixture small_experts), and MESHES the meshes of several GPUs: tensor, pipeline, expert (tokens
# travel by all-gather), alltoall (expert ranks, tokens travel by all-to-all) and tensor_expert. Exits 1 if a bit differs.
set -eu
cd "$(dirname "$0")/.."
primus=${PRIMUS:-build/bin/primus}
device=${DEVICE:-cuda}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
gpus=${GPUS:-1}
. scripts/find_cudnn.sh
if [ "$gpus" -gt 1 ]; then
  . scripts/find_nccl.sh
  [ $# -gt 0 ] || set -- none 8
  models=${MODELS:-narrow mixture}
  meshes=${MESHES:-tensor pipeline expert alltoall tensor_expert}
else
  [ $# -gt 0 ] || set -- none 8 16 64 96
  models=${MODELS:-narrow wide mixture small_experts}
  meshes=one
fi
configs=examples/native/configs/CPU
failed=0

# start MODEL OVERRIDE...: trains the model from which all runs of its dimensions start.
start() {
  model=$1
  shift
  "$primus" train pretrain --config $configs/llama_tiny-sums.yaml --plain "workspace=$scratch" work_group=w user_name=u \
    "device=$device" bf16=true "exp_name=start_$model" train_iters=40 "$@" >"$scratch/start.log" 2>&1 || {
    tail -n 12 "$scratch/start.log" >&2
    exit 1
  }
}

# learn NAME MODEL ZERO OVERRIDE...: four steps of GRPO, which learn twice from the same answers. ZERO: whether the
# difference must be 0.
learn() {
  name=$1 model=$2 zero=$3
  shift 3
  if ! "$primus" train grpo --config $configs/llama_tiny-grpo.yaml --plain "workspace=$scratch" work_group=w user_name=u \
    "device=$device" bf16=true "exp_name=$name" "load=$scratch/w/u/start_$model" train_iters=4 log_interval=1 \
    global_batch_size=192 max_completion_length=12 save_interval=100 "$@" >"$scratch/log" 2>&1; then
    failed=1
    echo "FAILED  $name"
    tail -n 12 "$scratch/log"
    return
  fi
  python3 - "$name" "$zero" "$scratch/w/u/$name" <<'CHECK' || failed=1
import json, pathlib, sys

name, zero, folder = sys.argv[1], sys.argv[2] == "zero", pathlib.Path(sys.argv[3])
steps = []
for path in folder.rglob("*.jsonl"):
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        found = [key for key in entry if key.endswith("sampling_logp_difference/mean")]
        if found:
            steps.append([entry[found[0]]] + [entry[key] for key in entry if key.endswith("sampling_logp_difference/max")])
good = len(steps) == 4 and all((max(step) == 0) == zero for step in steps)
print(f"{'ok     ' if good else 'FAILED '} {name}: difference of sampler and trainer in {len(steps)} steps:",
      " ".join(f"{max(step):g}" for step in steps), flush=True)
sys.exit(not good)
CHECK
}

# settings_of MODEL. Matrices of 256 columns and more are multiplied by other kernels than smaller ones. Tensor ranks
# divide heads and feed-forward layers, pipeline ranks divide layers, and the parts have multiples of 8 columns.
settings_of() {
  heads=4
  [ "$gpus" -le 4 ] || heads=$gpus
  groups=2 layers=2
  [ "$gpus" -le 2 ] || groups=$gpus layers=$gpus
  narrow="kv_channels=64 hidden_size=256 num_attention_heads=$heads num_query_groups=$groups num_layers=$layers"
  case $1 in
    narrow) echo "$narrow ffn_hidden_size=$((gpus > 1 ? 264 * gpus : 520))" ;;
    wide) echo "kv_channels=128 hidden_size=512 num_attention_heads=4 num_query_groups=1 ffn_hidden_size=1032 num_layers=4" ;;
    mixture) echo "$narrow ffn_hidden_size=$((gpus > 1 ? 136 * gpus : 264)) model_type=mixtral num_experts=8 moe_router_topk=2" ;;
    small_experts) echo "$narrow ffn_hidden_size=$((40 * gpus)) model_type=mixtral num_experts=16 moe_router_topk=4" ;;
    *)
      echo "no model is called $1; models: narrow wide mixture small_experts" >&2
      exit 2
      ;;
  esac
}

# mesh_of MESH: prints the settings of a mesh.
mesh_of() {
  case $1 in
    one) ;;
    tensor) echo "--nproc $gpus tensor_model_parallel_size=$gpus" ;;
    pipeline) echo "--nproc $gpus pipeline_model_parallel_size=$gpus" ;;
    expert) echo "--nproc $gpus expert_model_parallel_size=$gpus" ;;
    alltoall) echo "--nproc $gpus expert_model_parallel_size=$gpus moe_token_dispatcher_type=alltoall" ;;
    tensor_expert)
      echo "--nproc $gpus tensor_model_parallel_size=$gpus expert_model_parallel_size=$gpus expert_tensor_parallel_size=1"
      ;;
    *)
      echo "no mesh is called $1; meshes: tensor pipeline expert alltoall tensor_expert" >&2
      exit 2
      ;;
  esac
}

# has MODEL MESH: whether the model can be divided in this way.
has() {
  case $1-$2 in
    narrow-*expert | narrow-alltoall | wide-*expert | wide-alltoall) return 1 ;;
  esac
}

for model in $models; do
  settings=$(settings_of "$model")
  # Settings are separate words.
  # shellcheck disable=SC2086
  start "$model" $settings
  for mesh in $meshes; do
    has "$model" "$mesh" || continue
    shared=$(mesh_of "$mesh")
    row=$model
    [ "$mesh" = one ] || row=${model}_$mesh
    for rank; do
      if [ "$rank" = none ]; then
        lora=
      else
        lora="lora.enabled=true lora.dim=$rank lora.alpha=32 lora.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]"
      fi
      # shellcheck disable=SC2086
      learn "${row}_$rank" "$model" zero $settings $shared batch_invariant=true $lora
    done
    # shellcheck disable=SC2086
    learn "${row}_usual" "$model" above $settings $shared
  done
done
exit $failed
