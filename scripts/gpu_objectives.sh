#!/bin/sh
# Compares a GPU with the CPU in post-training, reinforcement learning, generation and other features of a run: trains tiny
# models for a few steps on both devices with the same settings, and compares losses, gradient norms and metrics of each step
# (scripts/compare_runs.py). Prints a line per row, and the number of failures.
#
#   scripts/gpu_objectives.sh [ROW]...            all rows by default; `list` prints their names
#   GPUS=2 scripts/gpu_objectives.sh [ROW]...     rows of preferences and reinforcement learning on each of the MESHES of two
#                                                 GPUs: data, tensor and pipeline
#
# In fp32, the first step must agree within 1e-5, and later steps within 1e-4, because updates amplify rounding. In bf16
# (rows whose names end so), values must agree within 1e-2 in the first step and 2e-2 in later ones, and gradient norms
# within 5e-2. Generated answers are compared in fp32, in which another choice of a token is improbable.
#
# Needs build/bin/primus with the plug-in in ../lib/primus, and python3. PRIMUS sets another program, DEVICE another device
# (cuda), JOBS the number of rows at a time (6), THREADS the threads of a run on the CPU (2), and SETTINGS further settings of
# the runs on DEVICE. KEEP is a folder in which the runs are kept; the next call with this folder does not train the models to
# start from again. Exits 1 if a row fails.
set -eu
cd "$(dirname "$0")/.."
. scripts/find_cudnn.sh
primus=${PRIMUS:-build/bin/primus}
device=${DEVICE:-cuda}
threads=${THREADS:-2}
data=examples/native/data

fine_tuning="sft sft_bf16 dft dpo dpo_bf16 dpo_losses wpo kto kto_bf16 kto_unpaired orpo orpo_bf16 cpo cpo_bf16 simpo \
  reference_adapters reward reward_bf16 distill distill_bf16 distill_forward distill_reverse distill_own distill_mixed"
adapters="lora lora_bf16 lora_dropout lora_dropout_bf16 lora_experts dora dora_bf16 rslora nf4 nf4_bf16 fp4 peft \
  texts_of_adapters losses_of_adapters"
rewards="grpo grpo_kl grpo_iterations grpo_bnpo grpo_dr grpo_cispo grpo_sapo grpo_vespo grpo_luspo gspo top_entropy rloo dapo \
  staleness model_rewards episodes ppo ppo_epochs ppo_scores ppo_adapters ppo_resumed"
runs="mtp mtp_bf16 mixture mixture_bf16 mxfp4_bf16 mxfp4_random_bf16 mxfp4_experts_bf16 fit memory nan epochs tokens minutes \
  target mlperf ranks_to_device device_to_ranks supervise snapshots"
uses="eval_text eval_conversations shared_pages long_prompt collectives strided"
all="$fine_tuning $adapters $rewards $runs $uses"

# The model of all rows has 2 layers, 2 heads of 64 columns and 256 tokens of context.
shape="num_layers=2 hidden_size=128 ffn_hidden_size=256 num_attention_heads=2 max_position_embeddings=256"
experts="model_type=mixtral num_experts=4 moe_router_topk=2"

# files: writes the experiments and the data that the examples do not have.
files() {
  for stage in sft dpo kto orpo cpo reward distill grpo rloo ppo pretrain; do
    module=post_trainer config=${stage}_trainer.yaml format="sft_conversation_format: squad"
    [ $stage != pretrain ] || module=pre_trainer config=pre_trainer.yaml format=
    cat >"$scratch/$stage.yaml" <<YAML
work_group: w
user_name: u
modules:
  $module:
    framework: native
    config: $config
    model: llama_tiny.yaml
    overrides:
      bf16: false
      lr: 1.0e-4
      lr_decay_style: constant
      lr_warmup_iters: 0
      train_iters: 4
      log_interval: 1
      save_interval: 1000
      eval_iters: 0
      seq_length: 256
      $format
YAML
  done
  python3 - "$scratch" <<'DATA'
import json, pathlib, sys

scratch = pathlib.Path(sys.argv[1])


def write(name, records):
    (scratch / name).write_text("".join(json.dumps(record) + "\n" for record in records))


write("prompts.jsonl", ({"prompt": f"Greet {name}."} for name in ("Ada", "Ben", "Carl", "Dora", "Eva", "Finn", "Gina", "Hans")))
common = "Below is a list of the people whom you have to greet today, in this order: Ada, Ben, Carl, Dora, Eva, Finn. "
write("shared.jsonl", (common + f"Number {i} is" for i in range(12)))
(scratch / "long.txt").write_text(common + common)
# Episodes: a call of the tool is one token, so that a model with random weights calls it by chance.
write("secrets.jsonl", ({"prompt": "?", "secret": str(i % 4)} for i in range(8)))
tokens = ["<end>", '<tool_call>{"name": "secret"}</tool_call>']
flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
folder = scratch / "tokenizer"
folder.mkdir()
(folder / "tokenizer.json").write_text(json.dumps({
    "version": "1.0", "added_tokens": [{"id": 5 + i, "content": token, **flags} for i, token in enumerate(tokens)],
    "pre_tokenizer": level, "decoder": level,
    "model": {"type": "BPE", "vocab": {symbol: i for i, symbol in enumerate("0123?")}, "merges": []}}))
(folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
environment = scratch / "environment.py"
environment.write_text('''#!/usr/bin/env python3
import json, sys

for line in sys.stdin:
    request = json.loads(line)
    secret, messages = request["record"]["secret"], request["messages"]
    if request["turn"] == 1 and not request["last"] and messages[-1].get("tool_calls"):
        reply = {"messages": [{"role": "tool", "content": secret}]}
    else:
        called = any(message.get("tool_calls") for message in messages)
        reply = {"done": True, "reward": 0.5 * called + 0.5 * messages[-1]["content"].startswith(secret)}
    print(json.dumps(reply), flush=True)
''')
environment.chmod(0o755)
DATA
}

# run NAME DEVICE STAGE WORD...: trains in the folder of the row. The log is NAME.log.
run() {
  name=$1 on=$2 stage=$3
  shift 3
  command=$stage
  [ "$stage" != sft ] || command=posttrain
  timeout 100 "$primus" train "$command" --config "$scratch/$stage.yaml" --plain "workspace=$folder" "exp_name=$name" \
    "device=$on" "num_threads=$threads" "$@" >"$folder/$name.log" 2>&1
}
# use NAME WORD...: runs another command, and writes its results to NAME.txt.
use() {
  name=$1
  shift
  timeout 100 "$primus" "$@" >"$folder/$name.txt" 2>"$folder/$name.log"
}

pass() {
  echo "ok      $row: $1"
  exit 0
}
fail() {
  echo "FAILED  $row: $1"
  exit 1
}
# failed NAME: ends the row with the error of a run.
failed() {
  fail "the run '$1' failed: $(grep -i -E -m 2 'error|refus|fatal' "$folder/$1.log" | tr '\n' ' ' | cut -c 1-300)"
}
curves() {
  # The limits are separate words.
  # shellcheck disable=SC2086
  text=$(scripts/compare_runs.py "$folder/w/u/$1" "$folder/w/u/$2" $limits) || fail "$text"
}

# both STAGE WORD...: trains on both devices, and compares.
both() {
  stage=$1
  shift
  # Settings are separate words.
  # shellcheck disable=SC2086
  set -- "$stage" $shape $type "$@"
  run cpu cpu "$@" &
  there=$!
  # shellcheck disable=SC2086
  run device "$device" "$@" ${SETTINGS:-} || failed device
  wait $there || failed cpu
  curves cpu device
  pass "$text"
}
# tuned STAGE WORD...: like both, from the model of the examples of two tones.
tuned() {
  stage=$1
  shift
  both "$stage" "load=$bases/w/u/tones" global_batch_size=4 "$@"
}
preferring() {
  stage=$1
  shift
  tuned "$stage" sft_dataset_name=$data/pairs.jsonl "$@"
}
sums="sft_dataset_name=$data/sums.jsonl sft_conversation_format=none seq_length=64 num_generations=8 global_batch_size=64 \
  micro_batch_size=16 max_completion_length=4"
# rewarded STAGE WORD...: learns from the sums of the examples.
rewarded() {
  stage=$1
  shift
  limits="$limits --answers"
  # shellcheck disable=SC2086
  both "$stage" "load=$bases/w/u/sums" $sums "reward=['exact:answer','regex:^1']" "$@"
}
# resumed STAGE WORD...: learns from the sums on the device at once, and in two parts. All numbers must be equal.
resumed() {
  stage=$1
  shift
  # shellcheck disable=SC2086
  set -- "$stage" $shape $type "load=$bases/w/u/sums" $sums "reward=['exact:answer','regex:^1']" "$@"
  run whole "$device" "$@" || failed whole
  run parts "$device" "$@" exit_interval=3 || failed parts
  run parts "$device" "$@" || failed parts
  limits="--first 0 --later 0 --steps 6"
  curves whole parts
  pass "$text"
}
# pretrained WORD...: learns from a text.
pretrained() {
  both pretrain "$@"
}
text_of="mock_data=false data_path=LICENSE split=90,10,0 seq_length=64 micro_batch_size=4 global_batch_size=8"

# texts WORD...: generates on both devices, and compares.
texts() {
  use cpu generate "$@" --device cpu --threads "$threads" || failed cpu
  use device generate "$@" --device "$device" || failed device
  for run in cpu device; do sed -E 's/"(prompt_)?seconds":[^,}]*//g' "$folder/$run.txt" >"$folder/$run.compared"; done
  [ -s "$folder/cpu.compared" ] || fail "no text was generated"
  cmp -s "$folder/cpu.compared" "$folder/device.compared" ||
    fail "the texts differ: $(diff "$folder/cpu.compared" "$folder/device.compared" | head -n 4 | cut -c 1-200 | tr '\n' ' ')"
}
# losses WORD...: evaluates on both devices, and compares the losses.
losses() {
  use cpu eval loss "$@" --json --device cpu --threads "$threads" || failed cpu
  use device eval loss "$@" --json --device "$device" || failed device
  for run in cpu device; do grep -o '"loss": *[0-9.e+-]*' "$folder/$run.txt" | grep -o '[0-9.e+-]*$' >"$folder/$run.losses"; done
  text=$(paste -d ' ' "$folder/cpu.losses" "$folder/device.losses" | awk '
    NF == 2 { d = ($2 - $1) / $1; d = d < 0 ? -d : d; if (d > most) most = d; ++rows }
    END { printf "%d losses within %.1e", rows, most; exit !(rows > 0 && most < 1e-5) }') || fail "$text"
  pass "$text"
}

# compare_full_run WORD...: trains on both devices until the setting ends the run, and compares the results.
compare_full_run() {
  # shellcheck disable=SC2086
  set -- $text_of eval_interval=4 eval_iters=1 "$@"
  pretrained "$@"
}

# killed WORD...: kills a supervised run on the device twice. Its losses must be those of an undisturbed run, bit for bit.
killed() {
  # shellcheck disable=SC2086
  set -- $shape $text_of train_iters=600 save_interval=30 keep_latest=2 "$@"
  run whole "$device" pretrain "$@" || failed whole
  run killed "$device" pretrain "$@" --supervise &
  runner=$!
  for kills in 1 2; do
    before=$(steps killed)
    tries=0
    while [ "$(steps killed)" -lt $((before + 61)) ]; do
      tries=$((tries + 1))
      [ $tries -lt 600 ] || fail "the run had only $(steps killed) steps before the kill $kills"
      sleep 0.1
    done
    # timeout runs the supervisor, whose child is the job.
    supervisor=$(child_of "$(child_of $runner timeout)" primus)
    job=$(child_of "$supervisor" primus)
    [ -n "$job" ] || fail "the run ended before the kill $kills"
    kill -9 "$job"
  done
  wait $runner || failed killed
  grep -q 'supervise: 2 restarts' "$folder/killed.log" || fail "the run was not restarted twice"
  for run in whole killed; do
    sed -n -E 's/.*"iteration":([0-9]+).*"lm_loss":([^,]+).*"grad_norm":([^,]+).*/\1 \2 \3/p' "$folder/w/u/$run/metrics.jsonl" \
      >"$folder/$run.curve"
  done
  [ "$(wc -l <"$folder/whole.curve")" = 600 ] || fail "the undisturbed run has $(wc -l <"$folder/whole.curve") steps"
  cmp -s "$folder/whole.curve" "$folder/killed.curve" || fail "the losses differ from those of an undisturbed run"
  pass "killed twice, 600 losses and gradient norms are equal bit for bit"
}
steps() {
  wc -l 2>/dev/null <"$folder/w/u/$1/metrics.jsonl" || echo 0
}
# child_of PROCESS NAME: prints the child with this name.
child_of() {
  tr ' ' '\n' <"/proc/$1/task/$1/children" 2>/dev/null | while read -r child; do
    [ "$(cat "/proc/$child/comm" 2>/dev/null)" != "$2" ] || echo "$child"
  done | head -n 1
}

# moved FROM RANKS TO RANKS: the first three steps on FROM, then a checkpoint, and three more on TO; compared with six steps of
# one rank on the CPU.
moved() {
  from=$1 first=$2 to=$3 second=$4
  # shellcheck disable=SC2086
  set -- $shape $text_of train_iters=6
  run cpu cpu pretrain "$@" || failed cpu
  # shellcheck disable=SC2086
  run moved "$from" pretrain "$@" exit_interval=3 $first || failed moved
  # shellcheck disable=SC2086
  run moved "$to" pretrain "$@" $second || failed moved
  limits="$limits --steps 6"
  curves cpu moved
  pass "$text"
}

# refused PATTERN NAME: the run must have failed with a message, and not by a signal.
refused() {
  message=$(grep -m 1 -E "$1" "$folder/$2.log") || failed "$2"
  message=$(echo "$message" | cut -c 1-160)
}

# communicating BENCHMARK WORD...: two ranks. One GPU is refused.
communicating() {
  code=0
  use device benchmark "$@" --nproc 2 --iters 10 --device "$device" || code=$?
  if [ $code = 0 ]; then pass "ran with two ranks"; fi
  if [ "$device" = cpu ] || [ $code != 2 ]; then failed device; fi
  refused 'GPU|unknown device' device
  pass "two ranks are refused: $message"
}

# alone ROW: one row.
alone() {
  row=$1
  folder=$scratch/rows/$row
  rm -rf "$folder"
  bases=$scratch/rows/bases
  mkdir -p "$folder"
  limits="--first 1e-5 --later 1e-4" type=bf16=false
  case $row in
    *_bf16) limits="--first 1e-2 --later 2e-2 --norms 5e-2" type=bf16=true ;;
  esac
  tones=$bases/w/u/tones
  tuning="sft_dataset_name=$data/two_tones.jsonl enable_packed_sequences=true"
  teacher="sft_dataset_name=$data/two_tones.jsonl teacher=$bases/w/u/teacher"
  alike="target_modules: [linear_qkv, linear_proj, linear_fc1, linear_fc2]"
  # shellcheck disable=SC2086
  case $row in
    sft | sft_bf16) tuned sft $tuning ;;
    dft) tuned sft $tuning loss_type=dft ;;
    dpo | dpo_bf16) preferring dpo ;;
    dpo_losses)
      preferring dpo lr=1e-6 label_smoothing=0.1 \
        "loss_type=[sigmoid,hinge,ipo,exo_pair,nca_pair,robust,bco_pair,sppo_hard,aot,aot_unpaired,apo_zero,apo_down,discopop,sft,sigmoid_norm]"
      ;;
    wpo) preferring dpo use_weighting=true ;;
    kto) preferring kto ;;
    # The divergence is a small difference of sums over answers, whose rounding errors in bf16 are as large.
    kto_bf16) limits="$limits --loose kl" && preferring kto ;;
    kto_unpaired) preferring kto loss_type=apo_zero_unpaired ;;
    orpo | orpo_bf16) preferring orpo ;;
    cpo | cpo_bf16) preferring cpo ;;
    simpo) preferring cpo loss_type=simpo cpo_alpha=0 ;;
    reference_adapters) preferring dpo "lora={enabled: true, adapters: $bases/peft}" "reference_adapters=$bases/peft" ;;
    reward | reward_bf16) preferring reward center_rewards_coefficient=0.01 ;;
    distill | distill_bf16) tuned distill $teacher distillation_label_share=0.25 ;;
    distill_forward) tuned distill $teacher beta=0 temperature=0.9 ;;
    distill_reverse) tuned distill $teacher beta=1 temperature=2 ;;
    distill_own)
      limits="$limits --answers"
      tuned distill $teacher "sft_dataset_name=$scratch/prompts.jsonl" distillation_on_policy_share=1 beta=1 max_completion_length=16
      ;;
    distill_mixed)
      limits="$limits --answers"
      tuned distill $teacher distillation_on_policy_share=0.5 max_completion_length=16
      ;;
    lora | lora_bf16) tuned sft $tuning "lora={enabled: true, dim: 8, alpha: 16, $alike}" ;;
    lora_dropout | lora_dropout_bf16) tuned sft $tuning "lora={enabled: true, dim: 8, alpha: 16, dropout: 0.2, $alike}" ;;
    lora_experts)
      pretrained $experts $text_of "load=$bases/w/u/mixture" finetune=true "lora={enabled: true, dim: 8, alpha: 16, $alike}"
      ;;
    dora | dora_bf16) tuned sft $tuning "lora={enabled: true, dim: 8, alpha: 16, use_dora: true, target_modules: all-linear}" ;;
    rslora)
      tuned sft $tuning "lora={enabled: true, dim: 8, alpha: 16, use_rslora: true, lora_bias: true, target_modules: [q_proj, v_proj, down_proj], rank_pattern: {v_proj: 16}, alpha_pattern: {q_proj: 32}, modules_to_save: [norm]}"
      ;;
    nf4 | nf4_bf16) tuned sft $tuning "lora={enabled: true, dim: 8, alpha: 16, base_weights: nf4}" ;;
    fp4) tuned sft $tuning "lora={enabled: true, dim: 8, alpha: 16, base_weights: fp4, base_double_quant: false}" ;;
    peft) tuned sft $tuning "lora={enabled: true, adapters: $bases/peft}" ;;
    texts_of_adapters)
      set -- "$tones" --adapters "a=$bases/peft" "b=$bases/w/u/dora" --prompts "$scratch/prompts.jsonl" --template auto -t 0 -n 24
      texts "$@" --batch 24
      cp "$folder/device.compared" "$folder/together"
      use device generate "$@" --batch 1 --device "$device" || failed device
      sed -E 's/"(prompt_)?seconds":[^,}]*//g' "$folder/device.txt" | cmp -s - "$folder/together" ||
        fail "texts of several models in one batch differ from texts that were generated alone"
      pass "$(wc -l <"$folder/together") texts of three models are equal on both devices, in one batch and alone"
      ;;
    losses_of_adapters)
      losses "$tones" --adapters "a=$bases/peft" "b=$bases/w/u/dora" --conversations $data/two_tones.jsonl
      ;;
    grpo) rewarded grpo ;;
    grpo_kl) rewarded grpo beta=0.1 entropy_coef=0.01 temperature=0.7 ;;
    grpo_iterations) rewarded grpo num_iterations=2 sampler_correction=token_truncate ;;
    grpo_bnpo | grpo_sapo | grpo_vespo | grpo_luspo) rewarded grpo num_iterations=2 loss_type="${row#grpo_}" ;;
    grpo_cispo) rewarded grpo num_iterations=2 loss_type=cispo epsilon_high=5 ;;
    grpo_dr) rewarded grpo num_iterations=2 loss_type=dr_grpo scale_rewards=none ;;
    gspo) rewarded grpo num_iterations=2 importance_sampling_level=sequence loss_type=grpo ;;
    top_entropy) rewarded grpo top_entropy_quantile=0.2 ;;
    rloo) rewarded rloo ;;
    dapo)
      rewarded grpo "reward=['exact:answer','regex:^1','length:4,2']" dynamic_sampling=true dynamic_sampling_max_batches=50 \
        num_iterations=2 epsilon_high=0.28 mask_truncated_completions=true
      ;;
    staleness) rewarded grpo max_staleness=2 train_iters=6 ;;
    model_rewards) rewarded grpo "reward=['model:$bases/w/u/scores','regex:^1']" ;;
    episodes)
      limits="$limits --answers"
      both grpo tokenizer_type=HuggingFaceTokenizer "tokenizer_model=$scratch/tokenizer" vocab_size=64 lr=1e-3 \
        "sft_dataset_name=$scratch/secrets.jsonl" sft_conversation_format=none "environment=$scratch/environment.py" \
        seq_length=24 num_generations=8 global_batch_size=64 micro_batch_size=16 max_completion_length=8
      ;;
    ppo) rewarded ppo ;;
    ppo_epochs) rewarded ppo num_ppo_epochs=2 num_mini_batches=2 whiten_rewards=true missing_eos_penalty=1 train_iters=6 ;;
    ppo_scores)
      rewarded ppo "reward=['model:$bases/w/u/scores','regex:^1']" "value_load=$bases/w/u/scores" kl_estimator=k3
      ;;
    ppo_adapters)
      rewarded ppo num_ppo_epochs=2 "lora={enabled: true, dim: 8, alpha: 16, $alike}" recompute_granularity=full \
        recompute_method=uniform recompute_num_layers=1
      ;;
    ppo_resumed) resumed ppo num_ppo_epochs=2 num_mini_batches=2 "value_load=$bases/w/u/scores" train_iters=6 ;;
    mtp | mtp_bf16) pretrained $text_of mtp_num_layers=1 ;;
    mixture | mixture_bf16)
      pretrained $text_of $experts moe_router_load_balancing_type=aux_loss moe_aux_loss_coeff=0.01 moe_z_loss_coeff=0.001 \
        moe_expert_capacity_factor=1.0
      ;;
    mxfp4_bf16) pretrained $text_of fp4=e2m1 fp4_recipe=mxfp4 ;;
    mxfp4_random_bf16) pretrained $text_of fp4=e2m1 fp4_recipe=mxfp4 mxfp4_gradient_stochastic_rounding=true ;;
    mxfp4_experts_bf16) pretrained $text_of $experts fp4=e2m1 fp4_recipe=mxfp4 ;;
    fit)
      run cpu cpu pretrain $shape $text_of global_batch_size=64 || failed cpu
      run device "$device" pretrain $shape $text_of global_batch_size=64 --fit || failed device
      curves cpu device
      pass "$(grep -o -m 1 'fit: micro_batch_size=[^,]*' "$folder/device.log"): $text"
      ;;
    memory)
      code=0
      run device "$device" pretrain hidden_size=32768 ffn_hidden_size=131072 num_attention_heads=256 num_layers=80 mock_data=true || code=$?
      [ $code = 2 ] || fail "a run that does not fit ended with code $code instead of 2"
      refused 'the run needs .* memory' device
      pass "is refused: $message"
      ;;
    nan)
      for run in cpu "$device"; do
        code=0
        run "$run" "$run" pretrain $shape $text_of lr=1000 min_lr=1000 weight_decay=1e38 || code=$?
        [ $code = 3 ] || fail "a NaN on $run ended with code $code instead of 3"
        refused 'lm loss is nan at iteration 2; the first operator with such a result is embedding' "$run"
      done
      pass "$(echo "$message" | grep -o 'lm loss is.*')"
      ;;
    epochs) compare_full_run train_epochs=1 ;;
    tokens) compare_full_run train_tokens=4096 ;;
    target) compare_full_run lr=1e-3 target_eval_loss=4.5 train_iters=60 ;;
    mlperf) compare_full_run stage=mlperf_pretrain train_iters=8 ;;
    minutes)
      began=$(date +%s)
      run device "$device" pretrain $shape $text_of train_minutes=0.1 || failed device
      took=$(($(date +%s) - began))
      { [ "$took" -ge 6 ] && [ "$took" -lt 40 ]; } || fail "a run of 6 s took $took s"
      pass "a run of 6 s ended after $took s with its start and end, $(steps device) steps"
      ;;
    ranks_to_device) moved cpu "--nproc 2 tensor_model_parallel_size=2" "$device" "" ;;
    device_to_ranks) moved "$device" "" cpu "--nproc 2 use_distributed_optimizer=true" ;;
    supervise) killed ;;
    snapshots) killed snapshot_interval=7 ;;
    eval_text) losses "$tones" --data LICENSE --seq-length 128 ;;
    eval_conversations) losses "$tones" --conversations $data/answers.jsonl ;;
    shared_pages)
      texts "$tones" --prompts "$scratch/shared.jsonl" --batch 6 -t 0 -n 24
      cp "$folder/device.compared" "$folder/together"
      use device generate "$tones" --prompts "$scratch/shared.jsonl" --batch 1 -t 0 -n 24 --device "$device" || failed device
      sed -E 's/"(prompt_)?seconds":[^,}]*//g' "$folder/device.txt" | cmp -s - "$folder/together" ||
        fail "texts that were generated together differ from texts that were generated alone"
      pass "$(wc -l <"$folder/together") texts with the same beginning are equal on both devices, together and alone"
      ;;
    long_prompt)
      texts "$tones" --prompt-file "$scratch/long.txt" -t 0 -n 24
      pass "the texts after a prompt of $(wc -c <"$scratch/long.txt") tokens are equal"
      ;;
    collectives) communicating collectives --op all --sizes 64K,4M --check ;;
    strided) communicating strided-allgather --stride 1 --sizes-mb 1,4 ;;
    *) fail "no row is called so; rows: $all" ;;
  esac
}

# start: the models from which rows start.
start() {
  row=bases
  folder=$scratch/rows/bases
  mkdir -p "$folder"
  threads=4
  running=
  tuning="global_batch_size=4 sft_dataset_name=$data/two_tones.jsonl enable_packed_sequences=true"
  further="load=$folder/w/u/tones sft_dataset_name=$data/answers.jsonl lr=1e-2"
  # Settings are separate words.
  # shellcheck disable=SC2086
  {
    run teacher cpu sft $shape hidden_size=256 num_attention_heads=4 lr=2e-3 train_iters=60 $tuning &
    running="$running teacher:$!"
    run sums cpu pretrain $shape lr=2e-3 train_iters=60 global_batch_size=16 micro_batch_size=16 seq_length=64 split=100,0,0 \
      data_path=$data/sums_text.jsonl reset_position_ids=true reset_attention_mask=true eod_mask_loss=true &
    running="$running sums:$!"
    run mixture cpu pretrain $shape $experts $text_of &
    running="$running mixture:$!"
    run tones cpu sft $shape lr=2e-3 train_iters=80 $tuning || failed tones
    run adapted cpu sft $shape $further "lora={enabled: true, dim: 4, alpha: 8, target_modules: [q_proj, v_proj, up_proj]}" &
    running="$running adapted:$!"
    run dora cpu sft $shape $further "lora={enabled: true, dim: 8, alpha: 8, use_dora: true, target_modules: all-linear}" &
    running="$running dora:$!"
    run scores cpu reward $shape "load=$folder/w/u/tones" sft_dataset_name=$data/pairs.jsonl lr=1e-3 train_iters=10 &
    running="$running scores:$!"
  }
  for of in $running; do wait "${of#*:}" || failed "${of%:*}"; done
  use peft model export "$folder/w/u/adapted" "$folder/peft" --adapters || failed peft
}

case ${1:-} in
  list)
    for row in $all; do echo "$row"; done
    exit 0
    ;;
  --row)
    scratch=${SCRATCH:?"the caller of --row sets SCRATCH, the folder of the rows"}
    alone "$2"
    ;;
esac
for row; do
  case " $all " in
    *" $row "*) ;;
    *)
      echo "no row is called '$row'; scripts/gpu_objectives.sh list prints the names" >&2
      exit 2
      ;;
  esac
done
if [ -n "${KEEP:-}" ]; then
  scratch=$KEEP
  mkdir -p "$scratch"
else
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
fi
began=$(date +%s)
gpus=${GPUS:-1}
if [ "$gpus" -gt 1 ]; then
  . scripts/find_nccl.sh
  [ $# -gt 0 ] || set -- dpo dpo_bf16 kto orpo distill grpo grpo_kl gspo rloo staleness model_rewards ppo ppo_epochs ppo_scores \
    ppo_adapters
  code=0
  for mesh in ${MESHES:-data tensor pipeline}; do
    case $mesh in
      data) division= ;;
      tensor | pipeline) division=" ${mesh}_model_parallel_size=$gpus" ;;
      *)
        echo "no mesh is called '$mesh'; meshes: data tensor pipeline" >&2
        exit 2
        ;;
    esac
    echo "$gpus $mesh ranks"
    GPUS=1 KEEP=$scratch SETTINGS="--nproc $gpus$division ${SETTINGS:-}" "$0" "$@" || code=1
  done
  exit $code
fi
if [ ! -e "$scratch/rows/bases/peft" ]; then
  files
  (start) || exit 1
  echo "the models to start from were trained in $(($(date +%s) - began)) s"
fi
# Rows are separate words.
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $all
printf '%s\n' "$@" | SCRATCH=$scratch xargs -P "${JOBS:-6}" -I{} scripts/gpu_objectives.sh --row {} | tee "$scratch/results"
good=$(grep -c '^ok' "$scratch/results" || true)
echo "$good of $# rows are right on $device, $(($# - good)) are not; $(($(date +%s) - began)) s"
[ "$good" = $# ]
