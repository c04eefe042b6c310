#include "config/validation/without_effect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "config/keys.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "config/validation/missing_data.h"

namespace primus::config {
namespace {

class WithoutEffect {
 public:
  WithoutEffect(const Experiment& experiment, std::vector<std::string>& warnings)
      : experiment_(experiment), config_(experiment.trainer), warnings_(warnings) {}

  // Uses the conditions of keys.def, and further conditions that need a longer explanation.
  void run() {
    for (const KeySpec& key : all_keys()) {
      if (key.conditions.empty()) continue;
      const KeyCondition& usual = key.conditions.front();
      needs(has_effect(key, config_), fmt::format("with {}: {}", usual.key, choices_of(usual)), {key.name});
    }
    const TrainerConfig& c = config_;
    const bool rotary = experiment_.provenance_of("rotary_scaling_factor").layer > Layer::kDerived;
    const bool compressed = !c.compress_ratios.empty();
    needs(c.multi_latent_attention || compressed,
          "with multi_latent_attention or compress_ratios: without them, rope_scaling_factor is the stretch",
          {"rotary_scaling_factor"});
    needs(!(c.multi_latent_attention || compressed) || !rotary,
          "without multi_latent_attention: with it, rotary_scaling_factor is the stretch",
          {"rope_scaling_factor"});
    needs(c.use_sink_attention, "with use_sink_attention", {"sink_sliding_window"});
    needs(c.use_sink_attention && c.sink_sliding_window > 0,
          "with use_sink_attention and sink_sliding_window", {"sink_window_even_layers_only"});
    needs(c.mtp_num_layers.value_or(0) > 0, "with mtp_num_layers", {"mtp_loss_scaling_factor"});
    // An explicit eval_iters: 0 needs no warning.
    const bool zero_is_said = experiment_.provenance_of("eval_iters").layer >= Layer::kOverrides;
    needs(c.eval_iters > 0 || zero_is_said, "with eval_iters above 0: nothing is evaluated",
          {"eval_interval"});
    schedule();
    parallel();
    of_layer(Layer::kCommandLine);
    gradients_and_stages();
    adapters();
    variables();
    needs(c.bf16, "with bf16", {"store_param_remainders"});
    needs(c.snapshot_interval > 0, "with snapshot_interval", {"snapshot_copy_rate"});
    needs(c.sample_interval.has_value(), "with sample_interval", {"sample_prompt", "sample_tokens"});
    if (stage_of(c).material == Material::kPrompts) reinforcement();
    if (stage_of(c).material == Material::kPreferences) preferences();
    if (stage_of(c).has_teacher && !generates_answers(c)) {
      needs(false, "with distillation_on_policy_share above 0: otherwise, the answers are those of the data",
            {"max_completion_length", "max_prompt_length", "top_p", "top_k", "log_completions",
             "mask_truncated_completions"});
    }
    if (c.num_experts) {
      needs(c.moe_router_load_balancing_type != "none", "with a moe_router_load_balancing_type",
            {"moe_aux_loss_coeff"});
      needs(c.moe_router_force_load_balancing, "with moe_router_force_load_balancing",
            {"moe_router_force_load_balancing_type"});
      needs(c.moe_expert_capacity_factor.has_value(), "with moe_expert_capacity_factor",
            {"moe_token_drop_policy"});
    }
    if (!c.load) of_model();  // the loaded config.json may set experts and the rotary scaling type
  }

  // Keys that depend on whether the model has experts and on its rotary scaling type.
  void of_model() {
    const TrainerConfig& c = config_;
    for (const KeySpec& key : all_keys()) {
      const bool of_experts = (key.name.starts_with("moe_") || key.name == "router_logit_softcapping") &&
                              key.has_meaning_for(Framework::kNative);
      if (of_experts && !c.num_experts && !asks_for_nothing(current_value(key, c)))
        needs(false, "with num_experts", {key.name});
    }
    if (c.num_experts) of_router();
    const std::string& type = c.rope_scaling_type;
    needs(type != "none", "with a rope_scaling_type", {"original_max_position_embeddings"});
    if (c.multi_latent_attention)
      needs(type != "none", "with a rope_scaling_type", {"rotary_scaling_factor"});
    if (!c.multi_latent_attention) needs(type != "none", "with a rope_scaling_type", {"rope_scaling_factor"});
    needs(type == "llama3", "with rope_scaling_type: llama3",
          {"rope_low_freq_factor", "rope_high_freq_factor"});
    needs(type == "yarn", "with rope_scaling_type: yarn",
          {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "yarn_correction_range_round_to_int"});
    needs(type == "longrope", "with rope_scaling_type: longrope", {"rope_short_factor", "rope_long_factor"});
    needs(c.mscale_all_dim.value_or(0) != 0 || c.mscale == 1.0, "with mscale_all_dim", {"mscale"});
  }

  // Settings of the layer `layer` that are without effect for random tokens, for a run without a start, and
  // for a run that saves nothing.
  void of_layer(Layer layer) {
    const TrainerConfig& c = config_;
    const auto in_layer = [&](std::string_view key) { return experiment_.provenance_of(key).layer == layer; };
    for (const std::string_view key :
         {"split", "eod_mask_loss", "reset_position_ids", "reset_attention_mask"}) {
      if (c.mock_data && stage_of(c).material == Material::kText && in_layer(key))
        needs(false, "with data_path: mock_data has random tokens", {key});
    }
    if (!c.load && !c.auto_continue_train && in_layer("no_load_optim"))
      needs(false, "with load or auto_continue_train", {"no_load_optim"});
    const Layer saving = std::max(experiment_.provenance_of("disable_last_saving").layer,
                                  experiment_.provenance_of("save_interval").layer);
    if (saving == layer && c.disable_last_saving && c.save_interval > c.train_iters && !length_is_open(c) &&
        c.train_iters > 0) {
      warnings_.push_back(fmt::format(
          "{}: no checkpoint is written: disable_last_saving is true, and save_interval ({}) is above "
          "train_iters ({}); only a run that is stopped early writes one",
          experiment_.provenance_of("disable_last_saving").describe(), c.save_interval, c.train_iters));
    }
  }

 private:
  // Returns the values of a condition: "a", "a or b", "a, b or c".
  static std::string choices_of(const KeyCondition& condition) {
    const std::span<const std::string_view> all = condition.values;
    if (all.size() == 1) return std::string(all.front());
    return fmt::format("{} or {}", fmt::join(all.first(all.size() - 1), ", "), all.back());
  }

  bool reads(std::string_view key) const { return has_effect(*find_key(key), config_); }

  // Keys that only some losses of pairs read (turbo/preference_loss). The stage may not read them at all,
  // which the conditions of keys.def say.
  void preferences() {
    const auto chosen = [&](std::initializer_list<std::string_view> losses) {
      return std::ranges::any_of(config_.loss_type, [&](const std::string& loss) {
        return std::ranges::find(losses, loss) != losses.end();
      });
    };
    // The losses of CPO, which alone reads cpo_alpha, have the names of other losses of DPO.
    const bool contrasts = reads("cpo_alpha");
    if (reads("label_smoothing")) {
      needs(contrasts ? chosen({"sigmoid", "simpo"}) : chosen({"exo_pair", "robust", "aot", "aot_unpaired"}),
            contrasts ? "with loss_type: sigmoid or simpo"
                      : "with loss_type: exo_pair, robust, aot or aot_unpaired",
            {"label_smoothing"});
    }
    if (reads("discopop_tau")) {
      needs(chosen({"discopop"}), "with loss_type: discopop", {"discopop_tau"});
      const bool of_divergence =
          chosen({"sigmoid", "hinge", "ipo", "exo_pair", "robust", "discopop", "sigmoid_norm"});
      needs(of_divergence ||
                chosen({"nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down"}),
            "with a loss_type that compares answers", {"beta", "ld_alpha"});
      needs(of_divergence, "with loss_type: sigmoid, hinge, ipo, exo_pair, robust, discopop or sigmoid_norm",
            {"f_divergence_type"});
    }
    if (contrasts) needs(chosen({"simpo"}), "with loss_type: simpo", {"simpo_gamma"});
  }

  // Keys of the loss of generated answers.
  void reinforcement() {
    const TrainerConfig& c = config_;
    const bool chooses_loss = stage_of(c).chooses_policy_loss;
    const std::string loss = !chooses_loss || c.loss_type.empty() ? "" : c.loss_type.front();
    // Stages with a value model refuse max_staleness.
    const std::string_view steps = stage_of(c).trains_values
                                       ? "with num_iterations above 1: with one step for each answer, the "
                                         "ratio of new to old probability "
                                         "is 1"
                                       : "with num_iterations above 1 or with max_staleness: with one step "
                                         "for each answer of the current "
                                         "weights, the ratio of new to old probability is 1";
    const bool has_parts = stage_of(c).trains_values && c.num_mini_batches > 1;
    const bool is_stale = c.max_staleness > 0 && !stage_of(c).trains_values;
    // With a correction, the ratio compares the weights with those of the first step that learns from the
    // answers. The mask of old answers compares them with the weights that generated the answers.
    const bool corrects = chooses_loss && c.sampler_correction != "none";
    const bool has_ratios = c.num_iterations > 1 || (is_stale && !corrects);
    const std::string_view ratios =
        is_stale && corrects
            ? "with num_iterations above 1 or without sampler_correction: with a correction, "
              "the ratio in the first step for an answer is 1"
            : steps;
    needs(has_ratios || has_parts, ratios, {"epsilon", "cliprange_value"});
    needs(has_ratios, ratios, {"delta"});
    needs(c.num_iterations > 1 || is_stale, steps, {"off_policy_mask_threshold"});
    // loss_type: cispo requires epsilon_high, even with one step for each answer.
    needs(has_ratios || loss == "cispo", ratios, {"epsilon_high"});
    needs(c.environment.has_value(), "with environment", {"environment_weight", "max_turns"});
    if (stage_of(c).trains_values) needs(*c.beta > 0, "with beta above 0", {"kl_estimator"});
    if (!chooses_loss) return;
    // The gradient of the corrected KL divergence contains the gradient of the ratio, which depends on the
    // level even where the ratio is 1.
    needs(has_ratios || (*c.beta > 0 && c.use_bias_correction_kl), ratios, {"importance_sampling_level"});
    needs(*c.beta > 0, "with beta above 0", {"use_bias_correction_kl"});
    needs(loss == "sapo", "with loss_type: sapo", {"sapo_temperature_pos", "sapo_temperature_neg"});
    needs(loss == "vespo", "with loss_type: vespo",
          {"vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"});
    const bool clips_above = loss != "sapo" && loss != "vespo", clips = clips_above && loss != "cispo";
    needs(clips, "with a loss_type that clips the ratio", {"delta"});
    if (has_ratios) {  // else, the warning about steps is given
      const std::string metrics =
          fmt::format("with a loss_type that clips the ratio: with {}, only metrics read it", loss);
      needs(clips, metrics, {"epsilon"});
      needs(clips_above, metrics, {"epsilon_high"});
    }
    needs(c.reward.size() + (c.environment ? 1 : 0) > 1, "with several rewards",
          {"multi_objective_aggregation"});
  }

  // Settings of the router that have an effect only together.
  void of_router() {
    const TrainerConfig& c = config_;
    needs(c.moe_router_num_groups.value_or(1) > 1, "with moe_router_num_groups above 1",
          {"moe_router_group_topk"});
    needs(c.moe_router_group_topk.has_value() || c.moe_router_num_groups.value_or(1) == 1,
          "with moe_router_group_topk", {"moe_router_num_groups"});
    // The warning is also given for the default type, because a user may set it to replace the type "none" of
    // a preset.
    constexpr std::string_view kType = "moe_router_load_balancing_type";
    const Provenance origin = experiment_.provenance_of(kType);
    if (origin.layer >= Layer::kOverrides && c.moe_router_load_balancing_type != "none" &&
        c.moe_aux_loss_coeff == 0) {
      warnings_.push_back(fmt::format("{}: {} has an effect only with moe_aux_loss_coeff", origin.describe(),
                                      experiment_.name_of(kType)));
    }
  }

  void needs(bool met, std::string_view what, std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
      if (met || !is_said(experiment_, key)) continue;
      warnings_.push_back(fmt::format("{}: {} has an effect only {}",
                                      experiment_.provenance_of(key).describe(), experiment_.name_of(key),
                                      what));
    }
  }

  // Settings that have no effect with the chosen learning-rate schedule, weight-decay schedule or
  // recomputation.
  void schedule() {
    const TrainerConfig& c = config_;
    const bool decays = c.lr_decay_style != "constant";
    constexpr std::string_view kDecays = "with a lr_decay_style other than constant";
    needs(decays, kDecays, {"min_lr"});
    needs(decays || c.lr_warmup_fraction, kDecays, {"lr_decay_iters"});
    needs(c.lr_warmup_iters > 0 || c.lr_warmup_fraction.value_or(0) > 0 || c.lr_warmup_init.value_or(0) == 0,
          "with lr_warmup_iters or lr_warmup_fraction", {"lr_warmup_init"});
    needs(c.start_weight_decay != c.end_weight_decay, "if start_weight_decay and end_weight_decay differ",
          {"weight_decay_incr_style"});
    needs(c.recompute_granularity == "full" || c.recompute_num_layers.value_or(0) == 0,
          "with recompute_granularity: full", {"recompute_num_layers"});
  }

  // Variables that the start of the ranks has read before the experiment sets them.
  void variables() {
    for (const std::string_view name : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK",
                                        "NNODES", "GPUS_PER_NODE", "MASTER_ADDR", "MASTER_PORT"}) {
      if (!experiment_.env.contains(std::string(name))) continue;
      warnings_.push_back(fmt::format(
          "{}: env.{} has no effect: the ranks are started before the experiment sets its variables; export "
          "{} "
          "instead, or use the options --nproc, --nnodes, --node_rank, --master_addr and --master_port",
          experiment_.provenance_of(fmt::format("env.{}", name)).describe(), name, name));
    }
    if (experiment_.env.contains("OMP_NUM_THREADS") &&
        experiment_.provenance_of("num_threads").layer >= Layer::kOverrides && config_.num_threads > 0) {
      warnings_.push_back(fmt::format("{}: env.OMP_NUM_THREADS has no effect with num_threads",
                                      experiment_.provenance_of("env.OMP_NUM_THREADS").describe()));
    }
  }

  // Settings of the checkpoints, the recomputation, the pipeline and the type of gradients.
  void gradients_and_stages() {
    const TrainerConfig& c = config_;
    const Provenance reduced = experiment_.provenance_of("grad_reduce_in_bf16");
    if (c.main_grads_dtype == "bf16" && !c.grad_reduce_in_bf16 && reduced.layer >= Layer::kOverrides) {
      warnings_.push_back(fmt::format(
          "{}: grad_reduce_in_bf16: false has no effect with main_grads_dtype: bf16, whose gradients "
          "are sent in bf16; set main_grads_dtype: fp32 to send them in fp32",
          reduced.describe()));
    }
    if (c.recompute_granularity == "full" && c.recompute_method == "block" && c.recompute_num_layers == 0) {
      warnings_.push_back(fmt::format("{}: nothing is recomputed: recompute_num_layers is 0",
                                      experiment_.provenance_of("recompute_num_layers").describe()));
    }
    const std::int64_t ends =
        c.decoder_first_pipeline_num_layers.value_or(0) + c.decoder_last_pipeline_num_layers.value_or(0);
    if (c.pipeline_model_parallel_size > 1 && ends == c.num_layers && ends > 0 &&
        !(c.pipeline_model_parallel_size == 2 && c.decoder_first_pipeline_num_layers &&
          c.decoder_last_pipeline_num_layers)) {
      const std::string_view key = c.decoder_first_pipeline_num_layers ? "decoder_first_pipeline_num_layers"
                                                                       : "decoder_last_pipeline_num_layers";
      warnings_.push_back(
          fmt::format("{}: the other pipeline stages have no layer: {} of {} layers are taken",
                      experiment_.provenance_of(key).describe(), ends, c.num_layers));
    }
  }

  // Settings of LoRA if lora.enabled is false.
  void adapters() {
    const Value* const lora = experiment_.settings.find("lora");
    if (!lora || experiment_.provenance_of("lora").layer < Layer::kOverrides) return;
    const Value* const enabled = lora->find("enabled");
    if (!enabled || enabled->kind != Value::Kind::kBool || enabled->boolean) return;
    for (const Member& member : lora->members) {
      if (member.key == "enabled" || member.value.is_null()) continue;
      warnings_.push_back(
          fmt::format("{}: lora.{} has no effect with lora.enabled: false, which trains all weights",
                      member.origin.describe(), member.key));
    }
  }

  // Settings that have an effect only if ranks share a model.
  void parallel() {
    const TrainerConfig& c = config_;
    needs(c.pipeline_model_parallel_size > 1, "with pipeline_model_parallel_size above 1",
          {"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
           "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
           "patch_primus_pipeline"});
    needs(c.tensor_model_parallel_size > 1, "with tensor_model_parallel_size above 1", {"tp_comm_overlap"});
    needs(c.context_parallel_size > 1, "with context_parallel_size above 1", {"cp_comm_type"});
    needs(c.use_torch_fsdp2 || c.data_parallel_sharding_strategy == "optim_grads_params",
          "with data_parallel_sharding_strategy: optim_grads_params", {"torch_fsdp2_reshard_after_forward"});
  }

  // Returns whether a value turns its feature off. Such a value is also valid for models without the feature.
  static bool asks_for_nothing(const Value& value) {
    return (value.kind == Value::Kind::kBool && !value.boolean) ||
           (value.kind == Value::Kind::kInt && value.integer == 0) ||
           (value.kind == Value::Kind::kFloat && value.real == 0) || value.text == "none";
  }

  const Experiment& experiment_;
  const TrainerConfig& config_;
  std::vector<std::string>& warnings_;
};

}  // namespace

bool is_said(const Experiment& experiment, std::string_view name) {
  const Provenance said = experiment.provenance_of(name);
  const bool of_command = said.origin.source && said.origin.source->name == kNoExperimentFile;
  if (said.layer < Layer::kOverrides || of_command) return false;
  const KeySpec& key = *find_key(name);
  TrainerConfig unsaid = experiment.trainer;
  std::visit(
      [&](auto field) {
        if constexpr (!std::is_same_v<decltype(field), std::monostate>)
          unsaid.*field = TrainerConfig().*field;
      },
      key.field);
  derive(unsaid);
  return !same_value(key, unsaid, experiment.trainer);
}

void warn_of_model_keys_without_effect(const Experiment& experiment, std::vector<std::string>& warnings) {
  WithoutEffect(experiment, warnings).of_model();
}

void warn_of_keys_without_effect(const Experiment& experiment, std::vector<std::string>& warnings) {
  WithoutEffect(experiment, warnings).run();
}

std::vector<std::string> unused_settings_of_file(const Experiment& experiment) {
  std::vector<std::string> sentences;
  WithoutEffect(experiment, sentences).of_layer(Layer::kOverrides);
  return sentences;
}

void warn_of_keys_of_text(const Experiment& experiment, std::vector<std::string>& warnings) {
  const TrainerConfig& c = experiment.trainer;
  const Material material = stage_of(c).material;
  const auto warn = [&](std::string_view key, const std::string& what) {
    warnings.push_back(experiment.provenance_of(key).describe() + ": " + what);
  };
  for (const auto& [key, value] :
       {std::pair("eod_mask_loss", c.eod_mask_loss), std::pair("reset_position_ids", c.reset_position_ids),
        std::pair("reset_attention_mask", c.reset_attention_mask)}) {
    if (!value) continue;
    warn(key, fmt::format("{} applies to text, and has no effect with stage: {}{}", key, c.stage,
                          material == Material::kConversations
                              ? " (use_packed_attention separates packed conversations)"
                              : ""));
  }
  if (material == Material::kConversations && generates_answers(c)) {
    // These settings describe how a data set packs conversations, but each step packs its own conversations.
    for (const auto& [key, value] : {std::pair("enable_packed_sequences", c.enable_packed_sequences),
                                     std::pair("use_packed_attention", c.use_packed_attention),
                                     std::pair("calculate_per_token_loss", c.calculate_per_token_loss)}) {
      if (value || experiment.provenance_of(key).layer < Layer::kOverrides) continue;
      warn(key, fmt::format("{} has no effect with distillation_on_policy_share: each step packs its "
                            "conversations, which do not attend to each other, and its loss is the mean over "
                            "all learned tokens",
                            key));
    }
  }
  const bool generates = material == Material::kPrompts;
  if ((material == Material::kPreferences || generates) && !c.calculate_per_token_loss &&
      experiment.provenance_of("calculate_per_token_loss").layer >= Layer::kOverrides) {
    warn("calculate_per_token_loss",
         fmt::format("calculate_per_token_loss has no effect with stage: {}, whose loss is {}", c.stage,
                     generates ? "a mean over all answers of a step" : "a mean over pairs or examples"));
  }
  if (generates && c.split) {
    warn(
        "split",
        fmt::format("split has no effect with stage: {}, which evaluates nothing: all prompts are trained on",
                    c.stage));
  }
}

}  // namespace primus::config
