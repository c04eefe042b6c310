// Settings of the losses that compare texts. Names and defaults are TRL 1.10's (DPOConfig, KTOConfig,
// ORPOConfig, CPOConfig, RewardConfig). Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace primus {

// The trainer of TRL whose loss is computed.
enum class PreferenceMethod : std::uint8_t {
  kDpo,     // pairs, compared with a reference model
  kKto,     // single answers, each good or bad, compared with a reference model
  kOrpo,    // pairs, without a reference model: odds ratios
  kCpo,     // pairs, without a reference model; includes SimPO
  kReward,  // pairs of scores of a reward model
};

struct PreferenceSettings {
  PreferenceMethod method = PreferenceMethod::kDpo;
  // DPO: sigmoid, hinge, ipo, exo_pair, nca_pair, robust, bco_pair, sppo_hard, aot, aot_unpaired, apo_zero,
  // apo_down, discopop, sft or sigmoid_norm; the losses of several types are added. KTO: kto or
  // apo_zero_unpaired. CPO: sigmoid, hinge, ipo or simpo. Empty: sigmoid, or kto. ORPO has one loss and no
  // type.
  std::vector<std::string> loss_types = {};
  std::vector<double> loss_weights = {};  // weight of each loss type; empty: 1
  double beta = 0.1;
  double label_smoothing = 0;
  double discopop_tau = 0.05;
  // Weight of the tokens beyond the length of the pair's shorter answer, in [0, 1]; empty: 1.
  std::optional<double> ld_alpha = {};
  std::string f_divergence_type = "reverse_kl";  // or forward_kl, js_divergence, alpha_divergence
  double f_alpha_divergence_coef = 0.5;
  // DPO: multiplies the loss of each pair by the relative probability of its answers under the trained model
  // (WPO).
  bool use_weighting = false;
  double desirable_weight = 1.0, undesirable_weight = 1.0;  // KTO: weights of good and of bad answers
  double simpo_gamma = 0.5;                                 // CPO with simpo: target margin
  double cpo_alpha = 1.0;                                   // CPO: weight of the loss -ln p of chosen answers
  double center_rewards_coefficient = 0;  // reward: weight of the loss (chosen score + rejected score)^2
  bool reference_free = false;            // DPO: all log-probabilities of the reference are 0
};

}  // namespace primus
