// Losses that compare texts: direct preference optimization (DPO) and its variants, KTO, ORPO, CPO and SimPO,
// as TRL computes them. The texts are documents of a packed microbatch. The loss depends on sums of
// log-probabilities over the tokens of each document, so it takes three calls:
//
//   1. DocumentSums: sums of token losses. On ranks with slices of each sequence, the sums are added up.
//   2. PreferenceLoss: the loss, its derivatives with respect to the sums, and the metrics.
//   3. DocumentWeights: the weight of each token's loss.
//
// Sums and derivatives are computed in fp64, in an order that depends only on sizes.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// sums[d] = -(the sum of factors[t] * losses[t] over the tokens of document d), where losses are -ln p(label)
// of each token. With factors of 1 the sum is the log-probability of the document. With collisions, which are
// sums of squared probabilities, each loss counts as losses[t] + ln(collisions[t]).
struct DocumentSums {
  static constexpr KernelId kId = KernelId::kDocumentSums;
  Tensor losses;   // [tokens] fp32
  Tensor factors;  // [tokens] fp32; tokens with factor 0 are not read from `losses`
  Tensor starts;   // [documents + 1] int32: first token of each document, then the end of the last one
  Tensor sums;     // output: [documents] fp64
  Tensor collisions = {};  // [tokens] fp32, or absent
  void check() const;
  double flops() const { return 2 * static_cast<double>(losses.elements()); }
};

enum class PreferenceForm : std::uint8_t {
  kDpo,   // pairs, with a reference
  kKto,   // single answers, with a reference
  kOrpo,  // pairs of mean log-probabilities, without a reference
  kCpo,   // pairs, without a reference
  // Pairs of scores of a reward model, in place of log-probabilities: -ln sigmoid(chosen - rejected -
  // margin). `reference` holds the margins: the entry of a document is subtracted from the document's score
  // before the scores are compared.
  kReward,
};

enum class PreferenceType : std::uint8_t {
  kSigmoid,
  kHinge,
  kIpo,
  kExoPair,
  kNcaPair,
  kRobust,
  kBcoPair,
  kSppoHard,
  kAot,
  kAotUnpaired,
  kApoZero,
  kApoDown,
  kDiscopop,
  kLikelihood,  // the loss -ln p of chosen answers (sft), with weight likelihood_weight
  kSigmoidNorm,
  kSimpo,
  kKto,
  kApoZeroUnpaired,
  kCount
};
constexpr int kPreferenceTypes = static_cast<int>(PreferenceType::kCount);

enum class PreferenceDivergence : std::uint8_t { kReverseKl, kForwardKl, kJensenShannon, kAlpha };

enum class PreferenceMetric : std::uint8_t {
  kLoss,
  kChosenRewards,
  kRejectedRewards,
  kAccuracies,
  kMargins,
  kChosenLogProbs,
  kRejectedLogProbs,
  kLikelihoodLoss,  // mean of -ln p over the tokens of `likelihoods`
  kLogOddsRatio,
  kLogOddsChosen,
  kDivergence,  // KTO's estimate of the KL divergence
  kScores,      // kReward: mean score of all texts
  kCount
};
constexpr int kPreferenceMetrics = static_cast<int>(PreferenceMetric::kCount);

// Constants of the loss, named as in lm/train/objectives/rules/preference_settings.h.
struct PreferenceTerms {
  PreferenceForm form = PreferenceForm::kDpo;
  PreferenceDivergence divergence = PreferenceDivergence::kReverseKl;
  bool averages = false;                       // kCpo: log-probabilities are divided by the answers' lengths
  double type_weights[kPreferenceTypes] = {};  // weight of each loss; 0: not computed
  // Weight of the loss -ln p of chosen documents: a mean over all tokens of the step.
  double likelihood_weight = 0;
  double beta = 0.1, smoothing = 0, tau = 0.05, alpha = 0.5, gamma = 0.5;
  double desirable = 1, undesirable = 1;
  double centering = 0;  // kReward: weight of (chosen score + rejected score)^2

  constexpr double weight_of(PreferenceType type) const { return type_weights[static_cast<int>(type)]; }
};

// Numbers of a whole step, over all microbatches and ranks: the positions in PreferenceLoss::totals.
enum class PreferenceTotal : std::uint8_t { kUnits, kLikelihoodTokens, kChosen, kRejected, kCount };
constexpr int kPreferenceTotals = static_cast<int>(PreferenceTotal::kCount);

// The roles of documents (lm/data/batch.h). A unit is a chosen document directly followed by a rejected one;
// with KTO, a single chosen or rejected document. The loss of a step is the mean over its units.
struct PreferenceLoss {
  static constexpr KernelId kId = KernelId::kPreferenceLoss;
  static constexpr std::int32_t kNone = 0, kChosen = 1, kRejected = 2, kMismatched = 3;
  PreferenceTerms terms;
  double microbatches;  // number of microbatches of the step on all ranks, for the mean of KL estimates
  // Position in `metrics` of each metric, or -1 for metrics that are not wanted.
  std::int8_t places[kPreferenceMetrics];
  bool adds_metrics;   // false: `metrics` is not changed
  Tensor roles;        // [documents] int32
  Tensor lengths;      // [documents] fp32: number of answer tokens
  Tensor sums;         // [documents] fp64: sums of the trained model's log-probabilities over answers
  Tensor reference;    // [documents] fp64: sums under the reference; absent: 0
  Tensor likelihoods;  // [documents] fp64: sums over the tokens of the likelihood loss; absent without it
  Tensor totals;       // [kPreferenceTotals] fp64
  // [documents] fp64: sums of ln p - ln(sum of p^2) over answers; absent: each pair has weight 1. The losses
  // of a pair are multiplied by min(1, exp(mean of the chosen answer + mean of the rejected answer)), which
  // the gradient treats as a constant (WPO, arXiv:2406.11827, equation 2).
  Tensor confidences = {};
  Tensor slopes;   // output: [documents, 2] fp32: derivatives with respect to `sums` and `likelihoods`
  Tensor metrics;  // [any] fp32: the call adds this microbatch's share of each metric
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

// weights[t] = -(slopes[d, 0] * factors[t] + slopes[d, 1] * likelihood_factors[t]) for each token t of
// document d. The gradient of the sum of weights[t] * losses[t] is then the gradient of the loss.
struct DocumentWeights {
  static constexpr KernelId kId = KernelId::kDocumentWeights;
  Tensor slopes;              // [documents, 2] fp32
  Tensor factors;             // [tokens] fp32
  Tensor likelihood_factors;  // [tokens] fp32, or absent
  Tensor starts;              // [documents + 1] int32
  Tensor weights;             // output: [tokens] fp32; tokens outside all documents are not written. May be
                              // factors
  // [tokens] fp32, or absent: -ln p(label) of each token. If present, each weight is multiplied by p(label).
  // A weight of 0 stays 0, even if the token's loss is not finite.
  Tensor losses = {};
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
