#include "lm/train/objectives/keys/reinforcement_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/reward/reward_json.h"

namespace primus {
namespace {

std::vector<double> numbers_of(const config::Experiment& experiment, std::string_view key,
                               const std::vector<std::string>& texts) {
  std::vector<double> numbers;
  for (const std::string& text : texts) {
    double number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || rest != end || !std::isfinite(number))
      throw experiment.error_for(key, fmt::format("'{}' is not a number", text),
                                 fmt::format("write a list of numbers: {}='[0.5, 1]'", key));
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

PolicySettings policy_settings_of(const config::Experiment& experiment, PolicyMethod method) {
  const config::TrainerConfig& c = experiment.trainer;
  PolicySettings settings{.method = method,
                          .beta = c.beta.value(),
                          .entropy = {.coef = 0, .reported = c.log_entropy},
                          .epsilon = c.epsilon,
                          .epsilon_high = c.epsilon_high,
                          .temperature = c.temperature,
                          .max_completion_length = c.max_completion_length};
  if (method == PolicyMethod::kRloo) return settings;
  settings.loss_type = c.loss_type.at(0);
  settings.entropy.coef = c.entropy_coef;
  settings.entropy.top_quantile = c.top_entropy_quantile;
  settings.importance_sampling_level = c.importance_sampling_level;
  settings.use_bias_correction_kl = c.use_bias_correction_kl;
  settings.delta = c.delta;
  settings.sapo_temperature_neg = c.sapo_temperature_neg;
  settings.sapo_temperature_pos = c.sapo_temperature_pos;
  settings.vespo.k_pos = c.vespo_k_pos;
  settings.vespo.lambda_pos = c.vespo_lambda_pos;
  settings.vespo.k_neg = c.vespo_k_neg;
  settings.vespo.lambda_neg = c.vespo_lambda_neg;
  settings.off_policy_mask_threshold = c.off_policy_mask_threshold;
  if (c.sampler_correction == "none") return settings;
  settings.vllm_importance_sampling_correction = true;
  settings.vllm_importance_sampling_mode = c.sampler_correction;
  settings.vllm_importance_sampling_clip_min = c.sampler_clip_min;
  settings.vllm_importance_sampling_clip_max = c.sampler_clip_max;
  return settings;
}

AdvantageSettings advantage_settings_of(const config::Experiment& experiment, PolicyMethod method) {
  const config::TrainerConfig& c = experiment.trainer;
  AdvantageSettings settings{.num_generations = c.num_generations,
                             .reward_weights = numbers_of(experiment, "reward_weights", c.reward_weights)};
  if (method == PolicyMethod::kPpo) {
    settings.sums = true;
    return settings;
  }
  if (c.environment) {
    // The environment's reward follows the rewards of the reward functions.
    if (settings.reward_weights.empty()) settings.reward_weights.resize(c.reward.size(), 1);
    settings.reward_weights.push_back(c.environment_weight);
  }
  if (method == PolicyMethod::kGrpo) {
    settings.scale_rewards = c.scale_rewards;
    settings.multi_objective_aggregation = c.multi_objective_aggregation;
    return settings;
  }
  settings.leave_one_out = true;
  settings.beta = c.beta.value();
  settings.normalize_advantages = c.normalize_advantages;
  const std::vector<double> range = numbers_of(experiment, "reward_clip_range", c.reward_clip_range);
  if (!range.empty()) settings.reward_clip_range = {range.at(0), range.at(1)};
  return settings;
}

SamplingSettings sampling_settings_of(const config::TrainerConfig& c) {
  return {.temperature = c.temperature,
          .top_k = c.top_k,
          .top_p = c.top_p,
          .seed = static_cast<std::uint64_t>(c.seed)};
}

RewardSettings reward_settings_of(const config::Experiment& experiment) {
  const config::TrainerConfig& c = experiment.trainer;
  return {.functions = c.reward,
          .weights = numbers_of(experiment, "reward_weights", c.reward_weights),
          .workers = c.reward_workers,
          .timeout_seconds = c.reward_timeout};
}

EnvironmentSettings environment_settings_of(const config::TrainerConfig& c) {
  return {.command = c.environment.value(), .workers = c.reward_workers, .timeout_seconds = c.reward_timeout};
}

std::string tools_of(const config::Experiment& experiment) {
  const std::optional<std::string>& file = experiment.trainer->tools;
  if (!file) return "";
  std::string text;
  try {
    text = read_file(*file);
  } catch (const Error& error) {
    throw experiment.error_for("tools", error.what(), "paths are relative to the current folder");
  }
  bool is_json = false;
  const nlohmann::json tools = bounded_json(text, is_json);
  const auto is_object = [](const nlohmann::json& tool) { return tool.is_object(); };
  if (!is_json || !tools.is_array() || tools.empty() || !std::ranges::all_of(tools, is_object)) {
    throw experiment.error_for("tools", fmt::format("'{}' is no JSON list of tools", *file),
                               R"(write [{"type": "function", "function": {"name": ..., "description": ..., )"
                               R"("parameters": {JSON schema}}}])");
  }
  return text;
}

data::PromptOptions prompt_options_of(const config::TrainerConfig& c) {
  return {.dataset = c.sft_dataset_name.value_or(""),
          .train_split = c.sft_dataset_split,
          .format = c.sft_conversation_format,
          .skip_bad = c.sft_skip_bad,
          .shuffle = c.dataloader_type == "cyclic",
          .seq_length = c.seq_length,
          .num_generations = c.num_generations,
          .seed = c.seed,
          .max_prompt_length = c.max_prompt_length.value_or(c.seq_length - c.max_completion_length),
          .step_samples = c.global_batch_size,
          .num_iterations = steps_of_answers(c)};
}

std::int64_t steps_of_answers(const config::TrainerConfig& c) {
  const config::Stage& stage = config::stage_of(c);
  if (stage.material != config::Material::kPrompts) return 1;
  return c.num_iterations * (stage.trains_values ? c.num_mini_batches : 1);
}

}  // namespace primus
