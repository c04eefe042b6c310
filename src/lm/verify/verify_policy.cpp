#include "lm/verify/verify_policy.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "base/error.h"
#include "lm/train/objectives/rules/advantages.h"

namespace primus {
namespace {

using data::DocumentRole;
using nlohmann::json;

// The settings of a case: for the loss, for the advantages, and for the batch.
struct CaseSettings {
  PolicySettings policy;
  AdvantageSettings advantages;
  bool masks_truncated = false;  // cut-off answers are not learned
  bool masks_tools = false;      // tokens with tool_mask 0 are not learned
  bool on_policy = false;        // ratios are 1
};

// Reads the settings of a case. Returns the name of a setting that is not built, or "".
std::string read_settings(const json& settings, CaseSettings& to) {
  PolicySettings& policy = to.policy;
  for (const auto& [key, value] : settings.items()) {
    if (key == "beta") {
      policy.beta = value;
    } else if (key == "epsilon") {
      policy.epsilon = value;
    } else if (key == "epsilon_high") {
      policy.epsilon_high = value.get<double>();
    } else if (key == "loss_type") {
      policy.loss_type = value;
    } else if (key == "importance_sampling_level") {
      policy.importance_sampling_level = value;
    } else if (key == "temperature") {
      policy.temperature = value;
    } else if (key == "use_bias_correction_kl") {
      policy.use_bias_correction_kl = value;
    } else if (key == "entropy_coef") {
      policy.entropy.coef = value;
    } else if (key == "top_entropy_quantile") {
      policy.entropy.top_quantile = value;
    } else if (key == "delta") {
      policy.delta = value.get<double>();
    } else if (key == "off_policy_mask_threshold") {
      policy.off_policy_mask_threshold = value.get<double>();
    } else if (key == "vllm_importance_sampling_mode") {
      policy.vllm_importance_sampling_correction = true;
      policy.vllm_importance_sampling_mode = value;
    } else if (key == "clip_min") {
      policy.vllm_importance_sampling_clip_min = value.get<double>();
    } else if (key == "clip_max") {
      policy.vllm_importance_sampling_clip_max = value.get<double>();
    } else if (key == "scale_rewards") {
      to.advantages.scale_rewards = value;
    } else if (key == "multi_objective_aggregation") {
      to.advantages.multi_objective_aggregation = value;
    } else if (key == "normalize_advantages") {
      to.advantages.normalize_advantages = value;
    } else if (key == "reward_clip_range") {
      to.advantages.reward_clip_range = {value.at(0).get<double>(), value.at(1).get<double>()};
    } else if (key == "mask_truncated_completions") {
      to.masks_truncated = value;
    } else if (key == "tool_mask") {
      to.masks_tools = value;
    } else if (key == "old_per_token_logps") {
      to.on_policy = true;
    } else {
      return key;
    }
  }
  return {};
}

// Writes a row of per-token values of answers to the answer's tokens of a text.
std::vector<float> of_text(const Text& text, std::size_t answer, const std::vector<float>& row,
                           const std::string& where) {
  if (row.size() < answer) throw invalid("an answer has more tokens than log-probabilities").at(where);
  std::vector<float> values(text.ids.size(), 0.0F);
  for (std::size_t t = 0; t < answer; ++t) values[text.ids.size() - answer + t] = row[t];
  return values;
}

// Returns, for each answer, the sum over its tokens of the policy's log-probability minus the reference's.
std::vector<double> divergences(const json& file, const SafetensorsFile& log_probs) {
  const auto policy = numbers(log_probs, "policy_per_token_logps");
  const auto reference = numbers(log_probs, "ref_per_token_logps");
  std::vector<double> sums;
  for (std::size_t a = 0; a < file.at("completions").size(); ++a) {
    sums.push_back(0);
    for (std::size_t t = 0; t < file.at("completions").at(a).size(); ++t)
      sums.back() += static_cast<double>(policy.at(a).at(t)) - static_cast<double>(reference.at(a).at(t));
  }
  return sums;
}

void compare_statistics(ObjectiveCase& c, const Advantages& advantages, const json& metrics,
                        double tolerance) {
  const auto compare = [&](const char* name, double value) {
    compare_number(c, name, value, metrics.at(name), tolerance);
  };
  compare("rewards/first/mean", advantages.functions.at(0).mean);
  compare("rewards/first/std", advantages.functions.at(0).deviation);
  compare("rewards/second/mean", advantages.functions.at(1).mean);
  compare("rewards/second/std", advantages.functions.at(1).deviation);
  compare("reward", advantages.reward.mean);
  compare("reward_std", advantages.reward.deviation);
  compare("frac_reward_zero_std", advantages.zero_deviation);
}

}  // namespace

std::vector<Text> answer_texts(const SafetensorsFile& batch) {
  const auto prompts = integers(batch, "prompt_ids"), prompt_mask = integers(batch, "prompt_mask");
  const auto answers = integers(batch, "completion_ids"), answer_mask = integers(batch, "completion_mask");
  std::vector<Text> texts;
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    Text& text = texts.emplace_back();
    text.role = DocumentRole::kAnswer;
    const auto add = [&](const std::vector<std::int64_t>& ids, const std::vector<std::int64_t>& mask,
                         bool learned) {
      for (std::size_t t = 0; t < ids.size(); ++t) {
        if (mask.at(t) == 0) continue;
        text.ids.push_back(token_id(ids[t], batch.name()));
        text.learned.push_back(learned);
      }
    };
    add(prompts[row], prompt_mask.at(row), false);
    add(answers.at(row), answer_mask.at(row), true);
  }
  if (texts.empty()) throw invalid("there are no answers").at(batch.name());
  return texts;
}

PolicyCase read_policy_case(ObjectiveCase& c, const json& file, const SafetensorsFile& batch,
                            const SafetensorsFile& log_probs, double tolerance) {
  const json& at = file.at("cases").at(c.name);
  CaseSettings settings;
  const bool rloo = c.objective == "rloo";
  if (rloo) settings.policy.method = PolicyMethod::kRloo;
  const std::string unknown = read_settings(at.at("settings"), settings);
  if (!unknown.empty()) {
    c.why_not_built = fmt::format("the setting '{}' is not built", unknown);
    return {};
  }
  PolicyCase out{.settings = settings.policy, .texts = answer_texts(batch)};
  out.settings.max_completion_length = file.at("max_completion_length");
  out.settings.entropy.reported = true;
  out.settings.has_sampled_log_probs = out.settings.vllm_importance_sampling_correction;
  settings.advantages.num_generations = file.at("num_generations");
  settings.advantages.reward_weights = file.at("reward_weights").get<std::vector<double>>();
  settings.advantages.leave_one_out = rloo;
  if (rloo) settings.advantages.beta = out.settings.beta;
  std::vector<std::optional<double>> rewards;
  for (const json& answer : file.at("rewards")) {
    for (const json& reward : answer)
      rewards.push_back(reward.is_null() ? std::nullopt : std::optional(reward.get<double>()));
  }
  const auto functions = static_cast<std::int64_t>(settings.advantages.reward_weights.size());
  const std::vector<double> kl =
      settings.advantages.beta != 0 ? divergences(file, log_probs) : std::vector<double>();
  const Advantages advantages = compute_advantages(settings.advantages, rewards, functions, kl);
  compare_statistics(c, advantages, at.at("scoring_metrics"), tolerance);
  // In the cases that correct importance sampling, `old` is the policy itself, and another model sampled the
  // answers.
  const bool corrected = out.settings.vllm_importance_sampling_correction;
  const auto old = numbers(log_probs, corrected ? "policy_per_token_logps" : "old_per_token_logps");
  const auto sampled = numbers(log_probs, "sampling_per_token_logps");
  const json& answers = file.at("completions");
  const std::int64_t end = 2;  // the token that ends an answer
  for (std::size_t a = 0; a < out.texts.size(); ++a) {
    Text& text = out.texts[a];
    const std::size_t length = answers.at(a).size(), begin = text.ids.size() - length;
    // Uses the float32 advantages of the reference, because its metrics count the signs of these advantages.
    text.value = at.at("advantages").at(a).get<float>();
    compare_number(c, fmt::format("advantage {}", a), advantages.values.at(a), at.at("advantages").at(a),
                   tolerance);
    if (!settings.on_policy) text.old_log_probs = of_text(text, length, old.at(a), log_probs.name());
    if (corrected) text.sampled_log_probs = of_text(text, length, sampled.at(a), log_probs.name());
    const bool truncated = answers.at(a).back() != end;
    for (std::size_t t = 0; t < length; ++t) {
      if (settings.masks_truncated && truncated) text.learned[begin + t] = false;
      if (settings.masks_tools && file.at("tool_mask").at(a).at(t) == 0) text.learned[begin + t] = false;
    }
  }
  return out;
}

}  // namespace primus
