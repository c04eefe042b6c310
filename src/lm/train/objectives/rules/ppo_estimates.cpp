#include "lm/train/objectives/rules/ppo_estimates.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "base/check.h"
#include "base/error.h"

namespace primus {

void check_ppo(const PpoSettings& s) {
  const auto require = [](bool condition, std::string_view setting, double value, std::string_view range) {
    if (!condition || !std::isfinite(value))
      throw invalid(fmt::format("{} is {}, but must be {}", setting, value, range));
  };
  require(s.kl_coef >= 0, "beta", s.kl_coef, "0 or a number above 0");
  require(s.gamma >= 0 && s.gamma <= 1, "gamma", s.gamma, "at least 0 and at most 1");
  require(s.lam >= 0 && s.lam <= 1, "lam", s.lam, "at least 0 and at most 1");
  require(s.cliprange >= 0, "epsilon", s.cliprange, "0 or a number above 0");
  require(s.cliprange_value >= 0, "cliprange_value", s.cliprange_value, "0 or a number above 0");
  require(s.vf_coef > 0, "vf_coef", s.vf_coef, "above 0");
  if (s.kl_estimator != "k1" && s.kl_estimator != "k3")
    throw invalid(fmt::format("kl_estimator '{}' does not exist", s.kl_estimator), "choose k1 or k3");
}

std::vector<double> divergences_of(const PpoSettings& settings, const PpoAnswer& answer) {
  std::vector<double> all(answer.log_probs.size(), 0.0);
  for (std::size_t t = 0; t < answer.reference.size(); ++t) {
    const double difference = answer.log_probs[t] - answer.reference[t];
    all[t] = settings.kl_estimator == "k3" ? std::expm1(-difference) + difference : difference;
  }
  return all;
}

void set_rewards(const PpoSettings& settings, PpoAnswer& answer) {
  const std::size_t tokens = answer.log_probs.size();
  PRIMUS_CHECK("set_rewards",
               tokens > 0 && (answer.values.size() == tokens || answer.values.size() == tokens + 1));
  answer.rewards = divergences_of(settings, answer);
  for (double& reward : answer.rewards) reward *= -settings.kl_coef;
  answer.rewards.resize(answer.values.size(), 0.0);
  answer.rewards.back() += answer.score;
}

void set_advantages(const PpoSettings& settings, PpoAnswer& answer) {
  const std::size_t count = answer.values.size();
  PRIMUS_CHECK("set_advantages", answer.rewards.size() == count);
  answer.advantages.assign(count, 0.0);
  answer.returns.assign(count, 0.0);
  double next_value = 0, next_advantage = 0;
  for (std::size_t t = count; t-- > 0;) {
    const double error = answer.rewards[t] + settings.gamma * next_value - answer.values[t];
    next_advantage = error + settings.gamma * settings.lam * next_advantage;
    next_value = answer.values[t];
    answer.advantages[t] = next_advantage;
    answer.returns[t] = next_advantage + answer.values[t];
  }
}

}  // namespace primus
