#include "config/validation/validate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "config/keys.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "config/validation/missing_data.h"
#include "config/validation/number_texts.h"
#include "config/validation/validate_parallel.h"
#include "config/validation/validate_snapshots.h"
#include "config/validation/validate_staleness.h"
#include "config/validation/without_effect.h"

namespace primus::config {
namespace {

// A larger query projection would overflow later size computations.
constexpr std::int64_t kMaxAttentionWidth = 1 << 22;
constexpr std::int64_t kMaxHeadWidth = 1 << 14;  // limit of the key kv_channels

class Validator {
 public:
  Validator(const Experiment& experiment, Problems& problems, std::vector<std::string>& warnings)
      : experiment_(experiment), config_(experiment.trainer), problems_(problems), warnings_(warnings) {}

  void run() {
    batches();
    initial_weights();
    rates();
    target();
    precision();
    attention();
    rope();
    schedule();
    recompute();
    data();
    profile();
    validate_parallel(experiment_, problems_, warnings_);
    if (config_.snapshot_interval > 0) validate_snapshots(experiment_, generates_answers(config_), problems_);
    validate_staleness(experiment_, problems_, warnings_);
    warn_of_keys_without_effect(experiment_, warnings_);
  }

 private:
  // Returns which of several contradicting keys was set in the strongest layer, where the user will look for
  // the error.
  std::string_view last_set(std::initializer_list<std::string_view> keys) const {
    std::string_view last = *keys.begin();
    for (std::string_view key : keys) {
      if (experiment_.provenance_of(key).layer > experiment_.provenance_of(last).layer) last = key;
    }
    return last;
  }

  void refuse(std::initializer_list<std::string_view> keys, std::string what, std::string hint = {}) {
    problems_.add(experiment_.error_for(last_set(keys), std::move(what), std::move(hint)));
  }

  void warn(std::string_view key, const std::string& what) {
    warnings_.push_back(experiment_.provenance_of(key).describe() + ": " + what);
  }

  bool is_set(std::string_view key) const { return experiment_.provenance_of(key).layer > Layer::kDerived; }

  void batches() {
    const std::int64_t micro = config_.micro_batch_size, global = config_.global_batch_size;
    if (global % micro != 0) {
      refuse({"global_batch_size", "micro_batch_size"},
             fmt::format("global_batch_size ({}) is not a multiple of micro_batch_size ({})", global, micro),
             global < micro ? fmt::format("set global_batch_size to {}", micro)
                            : fmt::format("set global_batch_size to {} or {}", global / micro * micro,
                                          (global / micro + 1) * micro));
    }
    // Limit for the run's tokens, which are counted in int64 and in double.
    constexpr double kMaxTokens = 9007199254740992.0;
    const double tokens = static_cast<double>(config_.train_iters) * static_cast<double>(global) *
                          static_cast<double>(config_.seq_length);
    if (tokens > kMaxTokens) {
      refuse({"train_iters", "global_batch_size", "seq_length"},
             fmt::format(
                 "train_iters * global_batch_size * seq_length is {:.3g} tokens, above the limit of 9e15",
                 tokens),
             "train for fewer steps");
    }
    const double evaluations =
        std::floor(static_cast<double>(config_.train_iters) / static_cast<double>(config_.eval_interval)) + 1;
    const double evaluated = evaluations * static_cast<double>(config_.eval_iters) *
                             static_cast<double>(global) * static_cast<double>(config_.seq_length);
    if (evaluated > kMaxTokens) {
      refuse({"eval_iters", "eval_interval", "train_iters", "global_batch_size", "seq_length"},
             fmt::format("evaluations * eval_iters * global_batch_size * seq_length is {:.3g} tokens, above "
                         "the limit of 9e15",
                         evaluated),
             "evaluate on fewer batches (eval_iters), or less often (eval_interval)");
    }
    if (is_set("max_position_embeddings") && config_.seq_length > config_.max_position_embeddings) {
      warn(last_set({"seq_length", "max_position_embeddings"}),
           fmt::format("seq_length ({}) is longer than max_position_embeddings ({}), the context that the "
                       "model was made for",
                       config_.seq_length, config_.max_position_embeddings));
    }
  }

  // Warns about unusual standard deviations of initial weights: usual values are 0.006 to 0.04.
  void initial_weights() {
    constexpr double kMaxUsual = 1;
    if (config_.init_method_std == 0 && !config_.load) {
      warn("init_method_std", "init_method_std is 0: all weights start at 0, and the model cannot learn");
    }
    if (config_.init_method_std <= kMaxUsual) return;
    warn(
        "init_method_std",
        fmt::format(
            "init_method_std is {}: training rarely succeeds with initial weights this large (0.02 is usual)",
            config_.init_method_std));
  }

  // Reports learning rates that leave the weights unchanged.
  void rates() {
    // AdamW changes a weight by about lr in a step. Usual weights are near kUsualWeight, where half the
    // distance between two fp32 numbers is 9e-10. kTooSmallSum is less than a hundredth of the distance
    // between two bf16 numbers there, and only rates below kSmallRate count, so that short tests with usual
    // rates give no warning.
    constexpr double kUsualWeight = 0.02, kTooSmallRate = 2e-9, kSmallRate = 1e-7, kTooSmallSum = 1e-6,
                     kTooSmallNorm = 1e-6;
    constexpr std::string_view kRemedy =
        "set lr higher (usual: 1e-5 for fine-tuning to 1e-3 for small models)";
    if (config_.train_iters == 0 && !length_is_open(config_)) return;
    const double sum = config_.lr * static_cast<double>(config_.train_iters);
    if (config_.lr < kTooSmallRate) {
      warn("lr", fmt::format("lr is {}: steps of this size are too small to change the weights, which are "
                             "usually near {}; {}",
                             config_.lr, kUsualWeight, kRemedy));
    } else if (config_.lr < kSmallRate && config_.train_iters > 0 && sum < kTooSmallSum) {
      warn("lr", fmt::format("lr is {}: {} steps of this size change a weight by at most about {:.1e}, and "
                             "weights are usually near {}, so the model hardly learns; {}",
                             config_.lr, config_.train_iters, sum, kUsualWeight, kRemedy));
    }
    if (config_.clip_grad > 0 && config_.clip_grad < kTooSmallNorm) {
      warn("clip_grad",
           fmt::format("clip_grad is {}: gradients of this size are too small to change the weights",
                       config_.clip_grad));
    }
  }

  void target() {
    if (config_.target_eval_loss && config_.eval_iters == 0) {
      refuse({"target_eval_loss", "eval_iters"},
             fmt::format("target_eval_loss is {}, but the run does not evaluate (eval_iters: 0)",
                         *config_.target_eval_loss),
             "set eval_iters to the number of batches per evaluation, or set target_eval_loss: null");
    }
    if (stage_of(config_).mlperf_log && !config_.target_eval_loss) {
      warn("stage",
           "mlperf_pretrain without a target (target_eval_loss, or MLLOG_TARGET_EVAL_LOSS in the "
           "environment): "
           "the run trains to its end, and its log ends with status aborted");
    }
  }

  void fp4() {
    if (!config_.fp4 || experiment_.framework != "native") return;
    if (config_.fp8)
      refuse({"fp4", "fp8"}, fmt::format("fp4: {} and fp8: {} are both set", *config_.fp4, *config_.fp8),
             "set one of them to null");
    if (!config_.bf16)
      refuse({"fp4", "bf16"}, fmt::format("fp4: {} needs bf16: true", *config_.fp4),
             "set bf16: true, or fp4: null");
    if (config_.fp4_recipe != "mxfp4")
      refuse({"fp4", "fp4_recipe"},
             fmt::format("the native engine does not support fp4: {} with fp4_recipe: {}", *config_.fp4,
                         config_.fp4_recipe),
             "set fp4_recipe: mxfp4, or fp4: null");
    if (config_.mxfp4_gradient_stochastic_rounding && config_.num_experts)
      refuse({"mxfp4_gradient_stochastic_rounding"},
             "mxfp4_gradient_stochastic_rounding does not support routed experts",
             "set mxfp4_gradient_stochastic_rounding: false");
  }

  void precision() {
    fp4();
    if (!config_.fp8 || experiment_.framework != "native") return;
    if (!config_.bf16)
      refuse({"fp8", "bf16"}, fmt::format("fp8: {} needs bf16: true", *config_.fp8),
             "set bf16: true, or fp8: null");
    if (config_.fp8_recipe != "tensorwise" && config_.fp8_recipe != "delayed")
      refuse({"fp8", "fp8_recipe"},
             fmt::format("the native engine does not support fp8: {} with fp8_recipe: {}", *config_.fp8,
                         config_.fp8_recipe),
             "set fp8_recipe: delayed or tensorwise, or fp8: null");
    if (config_.num_experts)
      warn("fp8", "routed experts stay in bf16, because their products do not support fp8");
  }

  void attention() {
    const std::int64_t heads = config_.num_attention_heads, groups = config_.num_query_groups;
    if (heads == 0 || config_.hidden_size == 0) return;  // another check reports the missing keys
    if (!is_set("kv_channels") && config_.kv_channels > kMaxHeadWidth) {
      refuse({"num_attention_heads", "hidden_size"},
             fmt::format(
                 "hidden_size ({}) / num_attention_heads ({}) gives heads of {} columns; the limit is {}",
                 config_.hidden_size, heads, config_.kv_channels, kMaxHeadWidth),
             "set more heads, or set kv_channels, the width of one head");
      return;
    }
    if (config_.multi_latent_attention) return;  // latent attention has its own head widths
    if (!is_set("kv_channels") && config_.hidden_size % heads != 0) {
      refuse({"hidden_size", "num_attention_heads"},
             fmt::format("hidden_size ({}) is not a multiple of num_attention_heads ({})",
                         config_.hidden_size, heads),
             "or set kv_channels, the width of one head");
      return;
    }
    if (config_.group_query_attention == true && !is_set("num_query_groups")) {
      refuse({"group_query_attention"}, "group_query_attention needs num_query_groups",
             "set it to the number of key and value heads");
    }
    if (config_.group_query_attention == false && groups != heads) {
      refuse({"group_query_attention", "num_query_groups"},
             fmt::format("num_query_groups is {}, but group_query_attention is false", groups),
             "set group_query_attention: true, or leave num_query_groups out");
    }
    if (heads % groups != 0) {
      refuse(
          {"num_query_groups", "num_attention_heads"},
          fmt::format("num_attention_heads ({}) is not a multiple of num_query_groups ({})", heads, groups),
          "set num_query_groups to a divisor of num_attention_heads");
    }
    if (heads * config_.kv_channels > kMaxAttentionWidth) {
      refuse({"kv_channels", "num_attention_heads"},
             fmt::format("num_attention_heads x kv_channels is {}; it must be at most {}",
                         heads * config_.kv_channels, kMaxAttentionWidth),
             "set smaller ones");
    }
    const double rotated = static_cast<double>(config_.kv_channels) * config_.rotary_percent;
    if (std::fmod(std::floor(rotated), 2.0) != 0 || rotated < 2) {
      refuse({"kv_channels", "rotary_percent", "num_attention_heads", "hidden_size"},
             fmt::format("the rotary embedding rotates pairs of channels, but {} channels of each head is "
                         "not an even number",
                         std::floor(rotated)),
             "choose kv_channels and rotary_percent so that their product is even");
    }
  }

  void rope() {
    if (config_.use_rope_scaling && config_.rope_scaling_type != "llama3") {
      refuse({"use_rope_scaling", "rope_scaling_type"},
             fmt::format("use_rope_scaling means rope_scaling_type: llama3, but rope_scaling_type is {} here",
                         config_.rope_scaling_type),
             last_set({"use_rope_scaling", "rope_scaling_type"}) == "rope_scaling_type"
                 ? "set use_rope_scaling: false, too"
                 : "leave use_rope_scaling out");
    }
    const std::string& type = config_.rope_scaling_type;
    // Megatron-LM selects the kind of rotary scaling by other keys. These keys apply if rope_scaling_type is
    // unset. If rope_scaling_type is set, these keys must agree with it.
    const auto contradicts = [&](std::string_view key, bool agrees, std::string_view value) {
      const auto layer = [&](std::string_view k) { return experiment_.provenance_of(k).layer; };
      if (agrees || layer(key) < Layer::kOverrides || layer(key) <= layer("rope_scaling_type")) return;
      refuse({key}, fmt::format("{} is {}, but rope_scaling_type is {}", key, value, type),
             "set rope_scaling_type to the same value, or set only rope_scaling_type");
    };
    contradicts("use_rope_scaling", config_.use_rope_scaling || type != "llama3", "false");
    if (config_.rope_type) {
      contradicts("rope_type", (*config_.rope_type == "yarn") == (type == "yarn"), *config_.rope_type);
    }
    contradicts("position_embedding_type", config_.position_embedding_type != "yarn" || type == "yarn",
                "yarn");
    if (config_.rope_scaling_type == "llama3" &&
        config_.rope_low_freq_factor > config_.rope_high_freq_factor) {
      refuse({"rope_low_freq_factor", "rope_high_freq_factor"},
             fmt::format("rope_low_freq_factor ({}) must not be above rope_high_freq_factor ({})",
                         config_.rope_low_freq_factor, config_.rope_high_freq_factor),
             "Llama 3.1 has 1 and 4");
    }
    if (config_.rope_scaling_type == "yarn" && config_.beta_slow > config_.beta_fast) {
      refuse({"beta_slow", "beta_fast"},
             fmt::format("beta_slow ({}) must not be above beta_fast ({})", config_.beta_slow,
                         config_.beta_fast),
             "DeepSeek has 1 and 32");
    }
  }

  void schedule() {
    // With sft_fit_to_data, a rate that the user does not set is chosen later, and is at least min_lr.
    const bool chosen_later =
        config_.sft_fit_to_data && experiment_.provenance_of("lr").layer < Layer::kOverrides;
    if (config_.min_lr > config_.lr && !chosen_later) {
      refuse({"min_lr", "lr"}, fmt::format("min_lr ({}) is above lr ({})", config_.min_lr, config_.lr),
             "lr is the peak, and min_lr is the end of the decay: set min_lr to at most lr");
    }
    if (config_.lr_warmup_init.value_or(0) > config_.lr) {
      refuse({"lr_warmup_init", "lr"},
             fmt::format("lr_warmup_init ({}) is above lr ({})", *config_.lr_warmup_init, config_.lr),
             "lr is the peak, and lr_warmup_init is the start of the warm-up: set it to at most lr");
    }
    if (config_.lr_warmup_iters >= config_.lr_decay_iters && config_.lr_warmup_iters > 0 &&
        config_.train_iters > 0 && config_.lr_decay_iters > 0) {
      warn(last_set({"lr_warmup_iters", "lr_warmup_fraction", "lr_decay_iters", "train_iters"}),
           fmt::format(
               "the warm-up ({} steps) takes the whole schedule ({} steps): the learning rate never decays",
               config_.lr_warmup_iters, config_.lr_decay_iters));
    }
    if (config_.lr_decay_style == "WSD") {
      if (!config_.lr_wsd_decay_iters) {
        refuse({"lr_decay_style"}, "lr_decay_style: WSD needs lr_wsd_decay_iters",
               "set it to the number of steps in the last phase");
      } else if (config_.lr_decay_iters > 0 && *config_.lr_wsd_decay_iters > config_.lr_decay_iters) {
        refuse({"lr_wsd_decay_iters", "lr_decay_iters", "train_iters"},
               fmt::format("lr_wsd_decay_iters ({}) is more than lr_decay_iters ({})",
                           *config_.lr_wsd_decay_iters, config_.lr_decay_iters),
               "set it to fewer steps: it is the last phase of the decay");
      }
    }
    const double start = config_.start_weight_decay.value_or(0), end = config_.end_weight_decay.value_or(0);
    if (config_.weight_decay_incr_style == "constant" && start != end) {
      refuse({"weight_decay_incr_style", "start_weight_decay", "end_weight_decay"},
             fmt::format("start_weight_decay ({}) and end_weight_decay ({}) differ, but "
                         "weight_decay_incr_style is constant",
                         start, end),
             "set weight_decay_incr_style: linear or cosine");
    }
  }

  void recompute() {
    const bool full = config_.recompute_granularity == "full";
    if (!config_.recompute_layer_ids.empty()) {
      if (!full) {
        refuse({"recompute_layer_ids", "recompute_granularity"},
               "recompute_layer_ids needs recompute_granularity: full",
               "set recompute_granularity: full, or recompute_layer_ids: null");
      }
      if (config_.recompute_method || config_.recompute_num_layers) {
        const char* key = config_.recompute_method ? "recompute_method" : "recompute_num_layers";
        refuse({key, "recompute_layer_ids"},
               fmt::format("{} and recompute_layer_ids both choose the blocks to recompute", key),
               "set one of them to null");
      }
    }
    if (full && config_.recompute_method == "block" && !config_.recompute_num_layers) {
      refuse({"recompute_method"}, "recompute_method: block needs recompute_num_layers",
             "set it to the number of blocks to recompute");
    }
    if (full && config_.recompute_method == "uniform" && config_.recompute_num_layers == 0) {
      refuse({"recompute_num_layers", "recompute_method"},
             "recompute_method: uniform needs recompute_num_layers of at least 1",
             "it is the number of blocks in a group; recompute_granularity: none recomputes nothing");
    }
    if (config_.recompute_num_layers.value_or(0) > config_.num_layers && config_.num_layers > 0) {
      refuse({"recompute_num_layers", "num_layers"},
             fmt::format("recompute_num_layers ({}) is more than num_layers ({})",
                         *config_.recompute_num_layers, config_.num_layers),
             fmt::format("set it to at most {}", config_.num_layers));
    }
  }

  void profile() {
    const TrainerConfig& c = config_;
    if (!c.profile) return;
    if (c.profile_step_end <= c.profile_step_start) {
      refuse(
          {"profile_step_end", "profile_step_start"},
          fmt::format("profile_step_end ({}) is not above profile_step_start ({}): no step is between them",
                      c.profile_step_end, c.profile_step_start),
          fmt::format("profile_step_end: {} traces one step", c.profile_step_start + 1));
    } else if (!length_is_open(c) && c.profile_step_start >= c.train_iters) {
      warn(last_set({"profile", "profile_step_start", "train_iters"}),
           fmt::format("nothing is traced: profile_step_start is {}, and training ends after {} steps",
                       c.profile_step_start, c.train_iters));
    }
    for (const std::string& rank : c.profile_ranks) {
      std::int64_t number = 0;
      const auto [end, failure] = std::from_chars(rank.data(), rank.data() + rank.size(), number);
      const bool good = failure == std::errc() && end == rank.data() + rank.size() && number >= 0;
      const bool native = experiment_.framework == "native";
      if (good || (native && rank == "all" && c.profile_ranks.size() == 1)) continue;
      refuse(
          {"profile_ranks"}, fmt::format("profile_ranks: '{}' is not a rank", rank),
          native ? "write numbers from 0 on, [0, 4], or all" : "write rank numbers from 0, such as [0, 4]");
    }
    if (c.profile_ranks.empty()) warn("profile_ranks", "nothing is traced: profile_ranks names no rank");
  }

  // Returns what the stage trains on, for messages.
  std::string_view material() const {
    switch (stage_of(config_).material) {
      case Material::kPreferences:
        return "preferences";
      case Material::kPrompts:
        return "prompts";
      case Material::kConversations:
      case Material::kText:
        break;
    }
    return "conversations";
  }

  // Returns the setting of the user that chooses the stage: the name of the preset, if the preset has the
  // stage.
  std::string_view setting_of_stage() const {
    return experiment_.provenance_of("stage").layer >= Layer::kOverrides ? "stage" : "config";
  }

  void conversations(bool separate) {
    if (!config_.sft_dataset_name) {
      refuse({setting_of_stage(), "sft_dataset_name"},
             fmt::format("stage is {}, but there are no {} to train on", config_.stage, material()),
             "set sft_dataset_name (on the command line also data) to a file of JSON lines, or a folder with "
             "train.jsonl");
    }
    if (config_.mock_data) {
      refuse({"mock_data", "stage"},
             fmt::format("stage is {}, but mock_data has no {}", config_.stage, material()),
             "set sft_dataset_name and mock_data: false, or stage: pretrain");
    }
    if (!config_.data_path.empty() || separate) {
      warn(last_set({"data_path", "train_data_path", "valid_data_path", "test_data_path"}),
           fmt::format("stage is {}, so the run trains on sft_dataset_name and ignores the data paths",
                       config_.stage));
    }
    warn_of_keys_of_text(experiment_, warnings_);
    const bool generates = stage_of(config_).material == Material::kPrompts;
    if (!generates && config_.sft_conversation_format == "none") {
      refuse({"sft_conversation_format", "stage"},
             fmt::format("sft_conversation_format is none, but stage {} learns answers, whose beginning a "
                         "format marks",
                         config_.stage),
             "choose a format, such as auto or chatml; none is for prompts (stage grpo, rloo or ppo)");
    }
    if (generates) rewards();
    if (stage_of(config_).has_teacher) teacher();
    // No warning for an explicit hf_path: null, which requests random weights.
    if (!config_.load && experiment_.provenance_of("hf_path").layer < Layer::kOverrides) {
      warn("stage",
           "fine-tuning starts from random weights, because the experiment names none: set load or hf_path. "
           "If random weights are intended, set hf_path: null");
    }
  }

  void teacher() {
    if (!config_.teacher_model_name_or_path.value_or("").empty()) return;
    refuse(
        {setting_of_stage(), name_of_key(&TrainerConfig::teacher_model_name_or_path)},
        fmt::format("stage {} needs a teacher", config_.stage),
        "set teacher_model_name_or_path (on the command line also teacher) to the folder of a model with the "
        "same tokenizer");
  }

  // Checks stages that generate answers to prompts.
  void rewards() {
    const TrainerConfig& c = config_;
    const std::string_view key = name_of_key(&TrainerConfig::reward);
    if (c.reward.empty() && !c.environment) {
      refuse({setting_of_stage(), key},
             fmt::format("stage is {}, but no reward function scores the generated answers", c.stage),
             "set reward, for example reward=exact:answer, which compares each answer with the column "
             "'answer' of its record; or reward=program:./reward.py (docs/rewards.md); or set environment");
    }
    if (!c.reward_weights.empty() && c.reward_weights.size() != c.reward.size()) {
      refuse({"reward_weights", key},
             fmt::format("reward_weights has {} number{}, but reward has {} function{}",
                         c.reward_weights.size(), c.reward_weights.size() == 1 ? "" : "s", c.reward.size(),
                         c.reward.size() == 1 ? "" : "s"),
             "write one weight for each function, or remove reward_weights");
    }
    if (c.loss_type.size() > 1) {
      refuse({"loss_type"},
             fmt::format("stage {} has one loss, but loss_type has {}", c.stage, c.loss_type.size()),
             "keep one of them");
    }
    if (!c.reward_clip_range.empty() && !is_range(c.reward_clip_range)) {
      refuse({"reward_clip_range"},
             fmt::format("reward_clip_range is [{}]; it must be a min and a larger max",
                         fmt::join(c.reward_clip_range, ", ")),
             "for example [-1, 1]");
    }
    const std::int64_t answers = c.global_batch_size, group = c.num_generations;
    if (group < 2 && !stage_of(c).trains_values) {
      refuse({"num_generations"},
             fmt::format("num_generations is {}, but stage {} compares the answers to one prompt", group,
                         c.stage),
             "set num_generations to 2 or more; stage ppo compares answers with a value model instead");
    }
    if (answers % group != 0) {
      refuse({"global_batch_size", "num_generations"},
             fmt::format("global_batch_size ({} answers per step) is not a multiple of num_generations ({} "
                         "answers per prompt)",
                         answers, group),
             answers < group ? fmt::format("set global_batch_size to {}", group)
                             : fmt::format("set global_batch_size to {} or {}", answers / group * group,
                                           (answers / group + 1) * group));
    }
    const std::int64_t prompt = c.max_prompt_length.value_or(1);
    if (prompt + c.max_completion_length > c.seq_length) {
      refuse({"seq_length", "max_prompt_length", "max_completion_length"},
             fmt::format(
                 "a prompt of {} and an answer of {} (max_completion_length) do not fit into "
                 "seq_length ({})",
                 c.max_prompt_length ? fmt::format("{} tokens (max_prompt_length)", prompt) : "one token",
                 c.max_completion_length, c.seq_length),
             fmt::format("increase seq_length to at least {}, or decrease max_completion_length",
                         prompt + c.max_completion_length));
    }
  }

  void data() {
    if (config_.split && !is_split(*config_.split)) {
      refuse({"split"},
             fmt::format("split is '{}'; it must be up to three shares with a sum above 0", *config_.split),
             "for example 969,30,1 (training, validation, test)");
    }
    const bool separate = !config_.train_data_path.empty() || !config_.valid_data_path.empty() ||
                          !config_.test_data_path.empty();
    if (config_.finetune && !config_.load &&
        experiment_.provenance_of("finetune").layer == Layer::kCommandLine) {
      warn("finetune",
           "finetune starts from the weights of load, but load is not set: the model starts with random "
           "weights");
    }
    // Experiments of AMD Primus often contain finetune: false without load, so only the command line counts.
    if (!config_.finetune && !config_.load &&
        experiment_.provenance_of("finetune").layer == Layer::kCommandLine) {
      warn("finetune",
           "finetune: false has no effect without load: it continues from the optimizer states and the step "
           "of "
           "the checkpoint that load names; set load, or omit finetune");
    }
    const bool text = stage_of(config_).material == Material::kText;
    if (!text) {
      conversations(separate);
    } else if (!config_.data_path.empty() && separate) {
      refuse({"data_path", "train_data_path", "valid_data_path", "test_data_path"},
             "data_path and train_data_path, valid_data_path or test_data_path exclude each other",
             "`split` divides data_path, and the others are used whole; data_path=null removes the "
             "experiment's data_path");
    }
    if (!text) {
      // conversations() reports this case
    } else if (config_.mock_data) {
      if (!config_.data_path.empty() || separate)
        warn("mock_data", "mock_data is true, so the run ignores the data paths");
    } else if (config_.data_path.empty() && config_.train_data_path.empty() &&
               (config_.train_iters > 0 || length_is_open(config_))) {
      refuse({"train_data_path"}, kNoTrainingData,
             hint_on_missing_data(config_.sft_dataset_name.has_value()));
    }
    if (config_.vocab_file.has_value() != config_.merge_file.has_value()) {
      refuse({config_.vocab_file ? "vocab_file" : "merge_file"},
             fmt::format("there is no {}", config_.vocab_file ? "merge_file" : "vocab_file"),
             "GPT2BPETokenizer needs both: vocab_file (vocab.json) and merge_file (merges.txt)");
    }
    if (!config_.vocab_size && !config_.tokenizer_type && !config_.tokenizer_model && !config_.vocab_file &&
        !config_.load) {
      refuse({"vocab_size"}, "the size of the vocabulary is unknown",
             "set tokenizer_model, tokenizer_type: ByteTokenizer, or vocab_size");
    }
  }

  const Experiment& experiment_;
  const TrainerConfig& config_;
  Problems& problems_;
  std::vector<std::string>& warnings_;
};

}  // namespace

void validate_native(const Experiment& experiment, Problems& problems, std::vector<std::string>& warnings) {
  Validator(experiment, problems, warnings).run();
}

}  // namespace primus::config
