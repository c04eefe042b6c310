// Policy-gradient losses: GRPO and its variants (bnpo, dr_grpo, dapo, cispo, sapo, vespo, luspo, GSPO), RLOO,
// and both losses of PPO, as TRL computes them. The generated answers are documents of a packed microbatch.
// The ratio of a whole answer depends on sums over its tokens, so the loss takes two calls:
//
//   1. PolicySums: sums over the tokens of each document. On ranks with slices of each sequence, the sums are
//      added up.
//   2. PolicyLoss: the weight of each token's loss, and the metrics.
//
// The losses of PPO have an advantage or a return for each token. They need no sums, and therefore only the
// second call. Their documents may be any division of the tokens.
//
// The arithmetic is fp64, in an order that depends only on sizes.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

enum class PolicyType : std::uint8_t {
  kClipped,  // -min(r A, clip(r) A)
  kCispo,    // -sg(min(r, high)) A ln p
  kSapo,     // -4 sigmoid(t (r - 1)) A / t
  kVespo,    // -sg(phi(w)) A ln p, where w is the ratio of the sequence
  // The loss of PPO's value model, whose scores v take the place of -ln p: max((v - R)^2, (v' - R)^2) / 2,
  // where R is the return and v' is v clipped to [old - low, old + high].
  kValues,
};

// The exponent of the ratio r = exp(...), from d = ln p - ln p(old).
enum class PolicyRatio : std::uint8_t {
  kToken,  // d
  kMean,   // the mean of d over the answer's tokens (GSPO)
  kSum,    // the sum of d over the answer's tokens (RLOO); requires PolicyAverage::kAnswers
};

// How the loss of a step is averaged. TRL's names are in parentheses.
enum class PolicyAverage : std::uint8_t {
  kAnswerMeans,      // mean over answers of the mean over an answer's tokens (grpo, sapo)
  kMicrobatchMeans,  // mean over microbatches of the mean over a microbatch's tokens (bnpo)
  kTokens,           // mean over all tokens (dapo, cispo, vespo)
  kLengths,          // mean over answers of (sum over an answer's tokens) / max_length (dr_grpo)
  kAnswerSums,       // mean over answers of the sum over an answer's tokens (luspo)
  kAnswers,          // mean over answers, which have one loss each (rloo)
};

// The correction for a sampler whose log-probabilities differ from the training pass's.
enum class PolicyCorrection : std::uint8_t {
  kNone,
  kTokenTruncate,
  kTokenMask,
  kSequenceTruncate,
  kSequenceMask,
};

enum class PolicyMetric : std::uint8_t {
  kLoss,
  kPolicyLoss,   // the loss without the entropy bonus, and without PolicyTerms::factor
  kEntropy,      // mean entropy of the tokens' distributions
  kDivergence,   // mean KL term per token
  kLowClipped,   // share of tokens (or answers) whose ratio is below 1 - low and whose advantage is negative
  kHighClipped,  // share whose ratio is above 1 + high and whose advantage is positive
  kClipped,      // share that kLowClipped or kHighClipped counts; kValues: share of clipped values
  kRatio,        // mean ratio of tokens, or of answers
  kPhi,          // vespo: mean phi of the answers
  kSamplingGap,  // mean |ln p(old) - ln p(sampled)| per token
  kCorrection,   // mean of the correction's ratio, per token or per answer
  kSquaredChange,  // mean of (ln p - ln p(old))^2 / 2 per token, an estimate of the KL divergence
  kCount
};
constexpr int kPolicyMetrics = static_cast<int>(PolicyMetric::kCount);

// Constants of VESPO. Answers with a negative advantage use k_negative and lambda_negative.
struct VespoTerms {
  double k_positive = 2, lambda_positive = 3, k_negative = 3, lambda_negative = 2;
};

// Constants of the loss, named as in lm/train/objectives/rules/policy_settings.h.
struct PolicyTerms {
  PolicyType type = PolicyType::kClipped;
  PolicyRatio ratio = PolicyRatio::kToken;
  PolicyAverage average = PolicyAverage::kTokens;
  PolicyCorrection correction = PolicyCorrection::kNone;
  bool bias_correction = false;  // the KL term is multiplied by the ratio
  double beta = 0;               // weight of the KL term
  double low = 0.2,
         high = 0.2;  // ratios are clipped to [1 - low, 1 + high]; cispo: high is the largest ratio
  double delta = 0;   // largest ratio before clipping; 0: infinite
  double drift = 0;   // threshold of the off-policy mask; used if `masks_drift`
  bool masks_drift = false;
  double correction_min = 0, correction_max = 0;  // bounds of the correction's ratio, which may be infinite
  double max_length = 1;
  double sapo_negative = 1.05, sapo_positive = 1;
  VespoTerms vespo;
  double factor = 1;  // kValues: weight of the loss
};

// The positions of a document's sums. Sums are over the tokens whose mask is not 0. The reference
// log-probability is ref, the sampler's is s; without `sampled`, s = old.
enum class PolicySum : std::uint8_t {
  kTokens,      // number of tokens
  kRatio,       // d = ln p - old
  kClamped,     // d clamped to [-20, 20]; vespo also adds the logarithms of the token correction
  kGap,         // old - s
  kDrift,       // s - ln p
  kCorrection,  // sum of the token correction's ratios (1 if there is none) over chosen tokens
  kDivergence,  // exp(ref - ln p) - (ref - ln p) - 1
  kCount
};
constexpr int kPolicySums = static_cast<int>(PolicySum::kCount);

// Per-token values. All are fp32 [tokens].
struct PolicyTokens {
  Tensor losses;     // -ln p(label) under the trained weights
  Tensor mask;       // tokens with mask 0 are not read from the other tensors
  Tensor old;        // ln p(label) under the weights that the ratio refers to; absent: the trained weights
  Tensor sampled;    // ln p(label) of the sampler, or absent
  Tensor reference;  // -ln p(label) under the reference model; absent without a KL term
  Tensor entropies;  // -sum p ln p of the token's distribution; may be absent without an entropy bonus
  // 1 for chosen tokens, 0 for others; absent: all tokens are chosen. The loss of a token that is not chosen
  // has only the KL term and the entropy bonus. Metrics and divisors count all tokens.
  Tensor chosen;
  Tensor advantages = {};  // the advantage of each token; absent: each answer has one advantage
  Tensor returns = {};     // kValues: the return of each token; otherwise absent

  // Returns whether the loss of a token depends on no other token of its answer.
  bool are_independent() const { return !advantages.absent() || !returns.absent(); }
};

struct PolicySums {
  static constexpr KernelId kId = KernelId::kPolicySums;
  PolicyTerms terms;
  PolicyTokens tokens;
  Tensor starts;  // [documents + 1] int32: first token of each document, then the end of the last one
  Tensor sums;    // output: [documents, kPolicySums] fp64
  void check() const;
  double flops() const { return 0; }
};

// weights[t] = -dL / d ln p(t), so the gradient of the sum of weights[t] * losses[t] is that of the loss L.
// Documents that are not answers, and tokens with mask 0, have the weight 0.
struct PolicyLoss {
  static constexpr KernelId kId = KernelId::kPolicyLoss;
  static constexpr std::int32_t kAnswer = 5;  // role of answers (lm/data/batch.h)
  PolicyTerms terms;
  PolicyTokens tokens;
  double microbatches = 1;       // number of microbatches of the step on all ranks
  double microbatch_tokens = 1;  // number of unmasked tokens of this microbatch, on all ranks that share it
  // Weight of the entropy bonus: the loss contains -entropy_coef * (mean entropy of the step's tokens).
  double entropy_coef = 0;
  // Position in `metrics` of each metric, or -1 for metrics that are not wanted.
  std::int8_t places[kPolicyMetrics];
  bool adds_answers;  // whether this rank adds the metrics of answers; one rank of those that share sequences
  Tensor starts;      // [documents + 1] int32
  Tensor roles;       // [documents] int32
  Tensor advantages;  // [documents] fp32; absent if tokens.are_independent()
  Tensor sums;        // [documents, kPolicySums] fp64; absent if tokens.are_independent()
  Tensor totals;      // [2] fp64: numbers of answers and of unmasked tokens in the whole step
  Tensor weights;     // output: [tokens] fp32
  Tensor entropy_weights;  // output: [tokens] fp32, the derivative of the loss with respect to each entropy;
                           // written only for tokens of answers with a mask; absent without an entropy bonus
  Tensor metrics;          // [any] fp32: the call adds this microbatch's share of each metric
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
