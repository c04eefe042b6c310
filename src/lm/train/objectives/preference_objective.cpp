#include "lm/train/objectives/preference_objective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "config/trainer_config.h"
#include "lm/data/preference_dataset.h"
#include "lm/train/objectives/conversation_objective.h"
#include "lm/train/objectives/rules/preference_rule.h"
#include "lm/train/objectives/sft.h"

namespace primus {
namespace {

double number_of(const config::Experiment& experiment, std::string_view key, const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && rest == end && std::isfinite(number)) return number;
  throw experiment.error_for(key, fmt::format("'{}' is not a number", text), "for example 1.0");
}

class PreferenceLearning final : public ConversationLearning {
 public:
  explicit PreferenceLearning(PreferenceMethod method) : method_(method) {}

  void prepare(config::Experiment& experiment) const override {
    preference_settings_of(experiment, method_);  // checks the settings
    check_reference_adapters(experiment);
    if (trains_scores()) refuse_texts(experiment);
    leave_out_evaluation(experiment, "the metrics of training show how often the chosen answer wins");
  }

  data::Datasets open(const data::SftOptions& options, const Tokenizer& tokenizer) const override {
    return data::open_preference_datasets(completed(options), kind(), tokenizer);
  }
  data::SftEpochs samples_of_epochs(const data::SftOptions& options, const Tokenizer& tokenizer,
                                    double epochs) const override {
    return data::preference_samples_of_epochs(completed(options), kind(), tokenizer, epochs);
  }
  bool trains_scores() const override { return method_ == PreferenceMethod::kReward; }
  std::string_view noun() const override {
    return method_ == PreferenceMethod::kKto ? "labelled answers" : "pairs of answers";
  }

  MakeLossRule loss_rule(const config::Experiment& experiment) const override {
    return preference_rule(preference_settings_of(experiment, method_), reference_weights_of(experiment));
  }

 private:
  // Refuses sample texts, which a reward model cannot generate.
  static void refuse_texts(const config::Experiment& experiment) {
    if (experiment.trainer->sample_interval) {
      throw experiment.error_for("sample_interval", "a reward model computes a score and no sample texts",
                                 "remove sample_interval");
    }
  }
  // The score of a text is computed from its last token.
  data::SftOptions completed(data::SftOptions options) const {
    options.last_token_is_input = trains_scores();
    options.can_evaluate = false;
    return options;
  }
  data::PreferenceKind kind() const {
    if (trains_scores()) return data::PreferenceKind::kScored;
    return method_ == PreferenceMethod::kKto ? data::PreferenceKind::kLabelled : data::PreferenceKind::kPairs;
  }

  const PreferenceMethod method_;
};

}  // namespace

PreferenceSettings preference_settings_of(const config::Experiment& experiment, PreferenceMethod method) {
  const config::TrainerConfig& c = experiment.trainer;
  PreferenceSettings settings{.method = method,
                              .label_smoothing = c.label_smoothing,
                              .discopop_tau = c.discopop_tau,
                              .f_divergence_type = c.f_divergence_type,
                              .f_alpha_divergence_coef = c.f_alpha_divergence_coef,
                              .desirable_weight = c.desirable_weight,
                              .undesirable_weight = c.undesirable_weight,
                              .simpo_gamma = c.simpo_gamma,
                              .cpo_alpha = c.cpo_alpha,
                              .center_rewards_coefficient = c.center_rewards_coefficient};
  // A key that has no effect in the stage is not passed on.
  if (method != PreferenceMethod::kReward) settings.beta = c.beta.value();
  if (method != PreferenceMethod::kOrpo && method != PreferenceMethod::kReward)
    settings.loss_types = c.loss_type;
  if (method == PreferenceMethod::kDpo) {
    settings.ld_alpha = c.ld_alpha;
    settings.reference_free = c.reference_free;
    settings.use_weighting = c.use_weighting;
    for (const std::string& weight : c.loss_weights)
      settings.loss_weights.push_back(number_of(experiment, "loss_weights", weight));
  }
  try {
    check_preferences(settings);
  } catch (const Error& error) {
    constexpr std::array<std::string_view, 7> kKeys = {
        "use_weighting", "f_divergence_type", "label_smoothing", "discopop_tau", "ld_alpha",
        "beta",          "loss_type"};
    const auto named = std::ranges::find_if(
        kKeys, [&](std::string_view key) { return std::string_view(error.what()).starts_with(key); });
    throw experiment.error_for(named == kKeys.end() ? kKeys.back() : *named, error.what(), error.hint());
  }
  return settings;
}

std::unique_ptr<Objective> make_preference_objective(PreferenceMethod method) {
  return make_fine_tuning(std::make_unique<PreferenceLearning>(method));
}

}  // namespace primus
