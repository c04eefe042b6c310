// The values that PPO computes from generated answers before it learns from them: rewards of tokens, and
// generalized advantage estimates (Schulman et al. 2016), as TRL 1.10 computes them. Host functions in fp64
// whose results depend only on the arguments. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace primus {

// Names and defaults are TRL 1.10's (PPOConfig).
struct PpoSettings {
  double kl_coef = 0.05;            // weight of the KL divergence in the rewards; 0: no reference model
  std::string kl_estimator = "k1";  // k1: ln p(current) - ln p(reference) = d; k3: e^-d - 1 + d
  double gamma = 1, lam = 0.95;     // discount, and decay of the estimates
  bool whiten_rewards = false;      // divides rewards by their deviation in the batch
  double cliprange = 0.2;           // ratios are clipped to [1 - cliprange, 1 + cliprange]
  double cliprange_value = 0.2;     // values are clipped to within this distance of the earlier values
  double vf_coef = 0.1;             // weight of the value model's loss
  bool reports_entropy = false;     // whether the metrics contain the mean entropy: a second pass over logits
  std::int64_t max_completion_length =
      256;  // an answer with this number of tokens has no value after its end
};

// Throws Error(kInvalid) for invalid values. The message begins with the name of the setting.
void check_ppo(const PpoSettings& settings);

// An answer of n tokens. If a token may follow the answer, there is a value after the last token, so that
// `values` and the results have n + 1 entries.
struct PpoAnswer {
  std::vector<double> log_probs, reference;  // [n] ln p of each token; `reference` may be empty (kl_coef 0)
  std::vector<double> values;                // [n or n + 1] before each token, and after the last one
  double score = 0;                          // the reward of the whole answer

  std::vector<double> rewards = {}, advantages = {}, returns = {};  // the results, as long as `values`
};

// Returns the KL divergence of each token, as the estimator defines it: zeros without a reference.
std::vector<double> divergences_of(const PpoSettings& settings, const PpoAnswer& answer);

// Sets the rewards of the tokens: -kl_coef times the divergence; the score is added to the last entry.
void set_rewards(const PpoSettings& settings, PpoAnswer& answer);
// Sets advantages, without whitening, and returns (advantage + value).
void set_advantages(const PpoSettings& settings, PpoAnswer& answer);

}  // namespace primus
