#include "config/key_hints.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/text/suggest.h"
#include "config/experiment_keys.h"

namespace primus::config {
namespace {

// The remark for keys of other programs that name data of any kind.
constexpr std::string_view kOfTexts = "for texts; for conversations, pairs and prompts: sft_dataset_name";

// The remark for keys of other programs that continue a run.
constexpr std::string_view kContinues = "needless: the same command, started again, continues its run";

// Keys of the Hugging Face Trainer, TorchTitan, MaxText, NeMo, nanoGPT, Axolotl, config.json, and trainers of
// reinforcement learning, sorted by name.
constexpr auto kSynonyms = std::to_array<Synonym>({
    {"accum_steps", "global_batch_size", "it counts sequences of all microbatches"},
    {"accumulate_grad_batches", "global_batch_size", "it counts sequences of all microbatches"},
    {"activation_checkpointing", "recompute_granularity"},
    {"adam_epsilon", "adam_eps"},
    {"amp", "bf16"},
    {"async_level", "max_staleness"},
    {"attention_dropout_prob", "attention_dropout"},
    {"attn_pdrop", "attention_dropout"},
    {"beta1", "adam_beta1"},
    {"beta2", "adam_beta2"},
    {"betas", "adam_beta1", "and adam_beta2"},
    {"block_size", "seq_length"},
    {"chat_template", "sft_conversation_format"},
    {"checkpoint", "load"},
    {"checkpoint_dir", "save"},
    {"checkpoint_interval", "save_interval"},
    {"checkpoint_path", "load"},
    {"checkpoint_steps", "save_interval"},
    {"context_length", "seq_length"},
    {"context_size", "seq_length"},
    {"cp", "context_parallel_size"},
    {"cpu_threads", "num_threads"},
    {"ctx_len", "seq_length"},
    {"d_ff", "ffn_hidden_size"},
    {"d_model", "hidden_size"},
    {"data", "data_path", kOfTexts},
    {"data_dir", "data_path", kOfTexts},
    {"data_file", "data_path", kOfTexts},
    {"data_files", "data_path", kOfTexts},
    {"dataset", "data_path", kOfTexts},
    {"dataset_path", "data_path", kOfTexts},
    {"decay_steps", "lr_decay_iters"},
    {"dim", "hidden_size"},
    {"dpo_beta", "beta"},
    {"dropout", "hidden_dropout", "and attention_dropout"},
    {"dtype", "bf16", "true computes in bfloat16, false in float32"},
    {"early_stop_steps", "exit_interval"},
    {"embed_dim", "hidden_size"},
    {"emb_dim", "hidden_size"},
    {"ep", "expert_model_parallel_size"},
    {"eps", "adam_eps"},
    {"eval_batches", "eval_iters"},
    {"eval_every", "eval_interval"},
    {"eval_freq", "eval_interval"},
    {"eval_steps", "eval_interval"},
    {"eval_strategy", "eval_interval", "steps between evaluations; eval_iters above 0 evaluates"},
    {"evaluation_strategy", "eval_interval", "steps between evaluations; eval_iters above 0 evaluates"},
    {"experiment", "exp_name"},
    {"experiment_name", "exp_name"},
    {"ffn_dim", "ffn_hidden_size"},
    {"gas", "global_batch_size", "it counts sequences of all microbatches"},
    {"global_batch", "global_batch_size"},
    {"grad_accum", "global_batch_size", "it counts sequences of all microbatches"},
    {"grad_accum_steps", "global_batch_size", "it counts sequences of all microbatches"},
    {"grad_clip", "clip_grad"},
    {"gradient_accumulation", "global_batch_size", "it counts sequences of all microbatches"},
    {"gradient_accumulation_steps", "global_batch_size", "it counts sequences of all microbatches"},
    {"gradient_checkpointing", "recompute_granularity"},
    {"gradient_clip_val", "clip_grad"},
    {"gradient_clipping", "clip_grad"},
    {"group", "work_group"},
    {"head_dim", "kv_channels"},
    {"head_size", "kv_channels"},
    {"init_from", "load"},
    {"init_std", "init_method_std"},
    {"initializer_range", "init_method_std"},
    {"intermediate_size", "ffn_hidden_size"},
    {"iterations", "train_iters"},
    {"iters", "train_iters"},
    {"keep_checkpoints", "keep_latest"},
    {"keep_last_n", "keep_latest"},
    {"learning_rate", "lr"},
    {"load_checkpoint", "load"},
    {"local_batch_size", "micro_batch_size"},
    {"log_every", "log_interval"},
    {"log_freq", "log_interval"},
    {"log_steps", "log_interval"},
    {"logging_steps", "log_interval"},
    {"lora_alpha", "lora", "its member alpha: lora.alpha=32"},
    {"lora_dim", "lora", "its member dim: lora.dim=16"},
    {"lora_dropout", "lora", "its member dropout: lora.dropout=0.1"},
    {"lora_r", "lora", "its member dim: lora.dim=16"},
    {"lora_rank", "lora", "its member dim: lora.dim=16"},
    {"lora_target_modules", "lora", "its member target_modules"},
    {"lr_scheduler", "lr_decay_style"},
    {"lr_scheduler_type", "lr_decay_style"},
    {"max_async_level", "max_staleness"},
    {"max_checkpoints", "keep_latest"},
    {"max_epochs", "train_epochs"},
    {"max_grad_norm", "clip_grad"},
    {"max_head_offpolicyness", "max_staleness", "it counts updates of the weights"},
    {"max_iters", "train_iters"},
    {"max_length", "seq_length"},
    {"max_lr", "lr"},
    {"max_new_tokens", "max_completion_length"},
    {"max_norm", "clip_grad"},
    {"max_off_policy_steps", "max_staleness"},
    {"max_seq_len", "seq_length"},
    {"max_seq_length", "seq_length"},
    {"max_staleness_steps", "max_staleness"},
    {"max_steps", "train_iters"},
    {"max_to_keep", "keep_latest"},
    {"max_trajectory_age_steps", "max_staleness"},
    {"mbs", "micro_batch_size"},
    {"min_learning_rate", "min_lr"},
    {"mixed_precision", "bf16", "true computes in bfloat16, false in float32"},
    {"model_dtype", "bf16", "true computes in bfloat16, false in float32"},
    {"model_name", "model_type", "or model: PRESET, next to overrides"},
    {"model_name_or_path", "load"},
    {"model_path", "load"},
    {"moe_intermediate_size", "moe_ffn_hidden_size"},
    {"n_ctx", "seq_length"},
    {"n_embd", "hidden_size"},
    {"n_experts", "num_experts"},
    {"n_group", "moe_router_num_groups"},
    {"n_head", "num_attention_heads"},
    {"n_heads", "num_attention_heads"},
    {"n_kv_heads", "num_query_groups"},
    {"n_layer", "num_layers"},
    {"n_layers", "num_layers"},
    {"n_positions", "max_position_embeddings"},
    {"n_routed_experts", "num_experts"},
    {"name", "exp_name"},
    {"num_epochs", "train_epochs"},
    {"num_experts_per_tok", "moe_router_topk"},
    {"num_experts_per_token", "moe_router_topk"},
    {"num_heads", "num_attention_heads"},
    {"num_hidden_layers", "num_layers"},
    {"num_iterations", "train_iters"},
    {"num_key_value_heads", "num_query_groups"},
    {"num_kv_heads", "num_query_groups"},
    {"num_local_experts", "num_experts"},
    {"num_steps", "train_iters"},
    {"num_train_epochs", "train_epochs"},
    {"num_train_steps", "train_iters"},
    {"omp_num_threads", "num_threads"},
    {"on_policy", "distillation_on_policy_share", "1: all steps learn from the trained model's own answers"},
    {"optim", "optimizer"},
    {"output", "workspace"},
    {"output_dir", "workspace"},
    {"output_path", "workspace"},
    {"packing", "enable_packed_sequences"},
    {"partial_rotary_factor", "rotary_percent"},
    {"peak_lr", "lr"},
    {"per_device_batch_size", "micro_batch_size"},
    {"per_device_train_batch_size", "micro_batch_size"},
    {"pp", "pipeline_model_parallel_size"},
    {"precision", "bf16", "true computes in bfloat16, false in float32"},
    {"pretrained", "load"},
    {"project", "work_group"},
    {"random_seed", "seed"},
    {"resid_pdrop", "hidden_dropout"},
    {"resume", "auto_continue_train", kContinues},
    {"resume_from", "load"},
    {"resume_from_checkpoint", "auto_continue_train", kContinues},
    {"rms_norm_eps", "norm_epsilon"},
    {"rollout_staleness", "max_staleness"},
    {"rope_theta", "rotary_base"},
    {"run_name", "exp_name"},
    {"sample_packing", "enable_packed_sequences"},
    {"sampling_steps_ahead", "max_staleness"},
    {"save_dir", "save"},
    {"save_every", "save_interval"},
    {"save_steps", "save_interval"},
    {"save_strategy", "save_interval", "steps between checkpoints"},
    {"save_total_limit", "keep_latest"},
    {"scheduler", "lr_decay_style"},
    {"seq_len", "seq_length"},
    {"sequence_len", "seq_length"},
    {"sequence_length", "seq_length"},
    {"sequence_parallel_size", "context_parallel_size"},
    {"sliding_window", "window_size"},
    {"staleness", "max_staleness"},
    {"staleness_threshold", "max_staleness", "it counts updates of the weights"},
    {"steps", "train_iters"},
    {"teacher_load", "teacher_model_name_or_path"},
    {"teacher_model", "teacher_model_name_or_path"},
    {"teacher_path", "teacher_model_name_or_path"},
    {"threads", "num_threads"},
    {"tie_embeddings", "untie_embeddings_and_output_weights"},
    {"tie_word_embeddings", "untie_embeddings_and_output_weights", "which has the opposite meaning"},
    {"tokenizer", "tokenizer_model"},
    {"tokenizer_name", "tokenizer_model"},
    {"tokenizer_name_or_path", "tokenizer_model"},
    {"tokenizer_path", "tokenizer_model"},
    {"top_k", "moe_router_topk"},
    {"topk_group", "moe_router_group_topk"},
    {"torch_dtype", "bf16", "true computes in bfloat16, false in float32"},
    {"total_batch_size", "global_batch_size"},
    {"total_steps", "train_iters"},
    {"tp", "tensor_model_parallel_size"},
    {"train_batch_size", "global_batch_size"},
    {"train_data", "train_data_path", kOfTexts},
    {"train_file", "train_data_path", kOfTexts},
    {"train_micro_batch_size_per_gpu", "micro_batch_size"},
    {"train_steps", "train_iters"},
    {"training_steps", "train_iters"},
    {"valid_file", "valid_data_path"},
    {"validation_file", "valid_data_path"},
    {"vocabulary_size", "vocab_size"},
    {"warmup_iters", "lr_warmup_iters"},
    {"warmup_ratio", "lr_warmup_fraction"},
    {"warmup_steps", "lr_warmup_iters"},
    {"wd", "weight_decay"},
    {"width", "hidden_size"},
});

constexpr std::string_view kOnlyAnswers =
    "of conversations, only the answers are learned: leave it out; 'primus train pretrain' learns whole "
    "texts";

// Keys of other programs that need no counterpart here.
constexpr auto kNeedless = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"accelerator", "device chooses where to compute: cpu, cuda, hip ('primus device list')"},
    {"assistant_only_loss", kOnlyAnswers},
    {"bnb_4bit_compute_dtype", "products have the run's compute type: bf16=true or bf16=false"},
    {"bnb_4bit_quant_type",
     "lora.base_weights=nf4 (or fp4) stores the frozen weights next to adapters in 4 bits (QLoRA)"},
    {"bnb_4bit_use_double_quant", "lora.base_double_quant=true or false, with lora.base_weights"},
    {"completion_only_loss", kOnlyAnswers},
    {"compile", "the native engine has nothing to compile: leave it out"},
    {"devices", "device chooses where to compute: cpu, cuda, hip ('primus device list')"},
    {"gpus", "the option --nproc N starts N ranks, each with a GPU of its own"},
    {"load_in_4bit", "lora.base_weights=nf4 stores the frozen weights next to adapters in 4 bits (QLoRA)"},
    {"load_in_8bit",
     "8 bits are not supported: lora.base_weights=nf4 stores the frozen weights next to adapters in 4 bits"},
    {"num_gpus", "the option --nproc N starts N ranks, each with a GPU of its own"},
    {"num_nodes",
     "'primus slurm srun -N 4 -- train pretrain ...' starts on 4 nodes; without Slurm, --nnodes on each"},
    {"nproc", "'primus train ... --nproc N' starts N ranks; commands without this option have one rank"},
    {"peft", "adapters are set in a map: lora.enabled=true, lora.dim=32 (docs/models.md)"},
    {"ref_adapter_name", "set reference_adapters to the PEFT folder of the reference model's adapters"},
    {"ref_model", "the reference model is the model at the start of the run: leave it out"},
    {"report_to", "each run writes TensorBoard files; 'primus report RUN --mlflow FOLDER' writes for MLflow"},
    {"reward_model_path", "reward=model:FOLDER scores answers with a reward model (docs/rewards.md)"},
    {"seq_kd",
     "the teacher generates no answers here: write its answers into the data ('primus generate'), or set "
     "distillation_on_policy_share=1, so that it scores the trained model's answers"},
    {"torch_compile_mode", "the native engine has nothing to compile: leave it out"},
    {"train_on_inputs", kOnlyAnswers},
    {"train_on_prompt", kOnlyAnswers},
    {"val_set_size",
     "split=99,1,0 divides the data into training and validation data, and eval_iters above 0 evaluates"},
});

// Keys of other engines, with the native engine's keys for the same purpose.
constexpr auto kInstead = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"cpu_offload", "recompute_granularity: full needs less memory on the device"},
    {"data_parallel_replicate_degree", "set num_distributed_optimizer_instances"},
    {"decoder_pipeline_manual_split_list", "set pipeline_model_parallel_layout"},
    {"encoder_seq_length", "set seq_length"},
    {"model_parallel_size", "set tensor_model_parallel_size"},
    {"moe_layer_recompute", "set recompute_granularity: selective and recompute_modules: [moe]"},
    {"offload", "recompute_granularity: full needs less memory on the device"},
    {"optimizer_cpu_offload",
     "share states between ranks (data_parallel_sharding_strategy: optim), keep moments in 8 or 16 bits "
     "(exp_avg_dtype), or set optimizer_cpu_offload: false to keep states on the device"},
    {"standalone_embedding_stage", "set pipeline_model_parallel_layout"},
    {"batch_size", "set micro_batch_size (sequences at once) and global_batch_size (sequences per step)"},
    {"fp16", "set bf16: true, or false for float32"},
    {"lr_decay_samples", "set lr_decay_iters"},
    {"lr_warmup_samples", "set lr_warmup_iters"},
    {"pretrained_checkpoint", "set load"},
    {"recompute_activations", "set recompute_granularity: selective"},
    {"rotary_seq_len_interpolation_factor", "set rope_scaling_type: linear and rope_scaling_factor"},
    {"train_samples", "set train_iters"},
    {"warmup", "set lr_warmup_iters, or lr_warmup_fraction"},
});

template <class Pairs>
std::string_view look_up(const Pairs& pairs, std::string_view name) {
  for (const auto& [key, text] : pairs) {
    if (key == name) return text;
  }
  return {};
}

std::string as_key(std::string_view name) {
  std::string text(name);
  for (char& c : text) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::span<const Synonym> synonyms() { return kSynonyms; }

std::string hint_about(std::string_view key) {
  if (key == "lora") return "lora.dim=16 enables adapters; 'primus config reference lora' explains it";
  return fmt::format("'primus config reference {}' explains it", key);
}

std::string hint_for_unknown_key(std::string_view name) {
  if (name == "bases" || name == "includes") return "write extends: [FILE, ...] to inherit from files";
  const std::string key = as_key(name);
  for (const Synonym& synonym : kSynonyms) {
    if (synonym.name != key) continue;
    std::string hint = fmt::format("did you mean '{}'?", synonym.key);
    if (!synonym.remark.empty()) hint += fmt::format(" ({})", synonym.remark);
    if (find_key(synonym.key)) hint += " " + hint_about(synonym.key);
    return hint;
  }
  if (const std::string_view needless = look_up(kNeedless, key); !needless.empty()) {
    return std::string(needless);
  }
  std::vector<std::string_view> names(key_names().begin(), key_names().end());
  for (const ExperimentKey& experiment_key : kExperimentKeys) names.push_back(experiment_key.name);
  // A mistyped key of another program may be closer than any key.
  std::vector<std::string_view> others;
  for (const Synonym& synonym : kSynonyms) others.push_back(synonym.name);
  const std::string_view other = closest(key, others), own = closest(name, names);
  if (!other.empty() && (own.empty() || edit_distance(key, other) < edit_distance(key, own)))
    return hint_for_unknown_key(other);
  const std::string near = did_you_mean(name, names);
  return near.empty() ? "'primus config reference' lists every key" : near;
}

std::string hint_for_unsupported(const KeySpec& key, std::string_view value) {
  if (const std::string_view instead = look_up(kInstead, key.name); !instead.empty()) {
    return std::string(instead);
  }
  if (key.native_values.front() == "null" || key.is_required) {
    return fmt::format("leave {} out, or set it to null", key.name);
  }
  // The hint must not suggest fp32 to a user who writes fp16, which means 16 bits.
  const bool half = same_ignoring_case(value, "fp16") &&
                    std::ranges::count(key.native_values, std::string_view("bf16")) > 0;
  return fmt::format("leave {0} out, or set {0}: {1}", key.name, half ? "bf16" : key.native_values.front());
}

}  // namespace primus::config
