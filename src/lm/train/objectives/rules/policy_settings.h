// Settings of the policy-gradient losses. Names and defaults are TRL 1.10's (GRPOConfig, RLOOConfig).
// Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace primus {

// The trainer of TRL whose loss is computed.
enum class PolicyMethod : std::uint8_t {
  kGrpo,  // GRPO and its variants
  kRloo,  // REINFORCE with leave-one-out baselines: one clipped ratio per answer
  kPpo,   // PPO with a value model (ppo_rule.h), which the settings below do not describe
};

struct PolicySettings {
  PolicyMethod method = PolicyMethod::kGrpo;
  // GRPO: grpo, bnpo, dr_grpo, dapo, cispo, sapo, vespo or luspo. RLOO has one loss and ignores the default.
  std::string loss_type = "dapo";
  // GRPO: "token", or "sequence" for one ratio per answer (GSPO).
  std::string importance_sampling_level = "token";
  // Weight of the KL divergence from the reference model; 0: there is no reference model. GRPO adds the
  // divergence to the loss. RLOO subtracts it from the rewards (advantages.h), so there the loss has no KL
  // term; TRL's default for RLOO is 0.05.
  double beta = 0;
  bool use_bias_correction_kl = true;  // GRPO: the KL term is multiplied by the ratio
  struct Entropy {
    double coef = 0;        // GRPO: weight of the mean entropy of the step's tokens, subtracted from the loss
    bool reported = false;  // whether the metrics contain the mean entropy: a second pass over the logits
    // GRPO: only this share of the step's answer tokens, those with the highest entropies, has a policy loss
    // (TRL's top_entropy_quantile). The other tokens have only the KL term and the entropy bonus. Below 1,
    // each step has a further forward pass.
    double top_quantile = 1;
  } entropy = {};
  double epsilon = 0.2;                     // ratios are clipped to [1 - epsilon, 1 + epsilon_high]
  std::optional<double> epsilon_high = {};  // empty: epsilon; for cispo, the largest ratio itself
  std::optional<double> delta = {};         // GRPO: largest ratio before clipping (two-sided clipping)
  double sapo_temperature_neg = 1.05, sapo_temperature_pos = 1.0;
  struct Vespo {
    double k_pos = 2, lambda_pos = 3, k_neg = 3, lambda_neg = 2;
  } vespo = {};  // vespo_k_pos and so on
  // GRPO: answers with a negative advantage are dropped if the mean of ln(sampled / current) over their
  // tokens is above this threshold.
  std::optional<double> off_policy_mask_threshold = {};
  // Divisor of the logits, for all log-probabilities. The caller applies it to the model: with_temperature().
  double temperature = 1;
  std::int64_t max_completion_length = 256;  // dr_grpo: divisor of each answer's loss

  // Whether batches have log-probabilities of the sampler (Batch::sampled_log_probs). If so, the metrics
  // report their differences from the training pass.
  bool has_sampled_log_probs = true;
  // GRPO: multiplies losses by the ratio old / sampled, which corrects differences between the sampler and
  // the training pass. Requires sampled log-probabilities.
  bool vllm_importance_sampling_correction = false;
  // token_truncate or sequence_truncate: the ratio is clamped to [clip_min, clip_max]; token_mask or
  // sequence_mask: ratios outside become 0. A sequence's ratio is the product of its tokens' ratios.
  std::string vllm_importance_sampling_mode = "sequence_mask";
  std::optional<double> vllm_importance_sampling_clip_min = {};
  std::optional<double> vllm_importance_sampling_clip_max = 3.0;
};

}  // namespace primus
