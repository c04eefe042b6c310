// The losses and metrics of the documents of a microbatch, in fp64, because they are few; shared by the
// kernels of all devices.
#pragma once

#include <cstdint>

#include "turbo/formula.h"
#include "turbo/preference_loss/pair_losses.h"
#include "turbo/preference_loss/preference_loss.h"

namespace primus::turbo::PRIMUS_KERNELS {

// The documents of a microbatch, as the kernels see them.
struct PreferenceDocuments {
  PreferenceTerms terms;
  double microbatches;
  const std::int32_t* roles;
  const float* lengths;
  const double *sums, *reference, *likelihoods, *totals, *confidences;
  // [4, documents]: the quantities of transported() in ascending order: two rows for the paired loss, one per
  // side, then two rows for the unpaired loss.
  double* sorted;
  std::int64_t documents;

  PRIMUS_FORMULA bool begins_pair(std::int64_t d) const {
    return d + 1 < documents && roles[d] == PreferenceLoss::kChosen &&
           roles[d + 1] == PreferenceLoss::kRejected;
  }
  PRIMUS_FORMULA double total(PreferenceTotal which) const {
    return ::fmax(totals[static_cast<int>(which)], 1.0);
  }
  PRIMUS_FORMULA double reference_of(std::int64_t d) const { return reference ? reference[d] : 0.0; }
  PRIMUS_FORMULA double ratio(std::int64_t d) const { return sums[d] - reference_of(d); }
  PRIMUS_FORMULA double length(std::int64_t d) const { return ::fmax(static_cast<double>(lengths[d]), 1.0); }
  // Returns the weight of the pair at d.
  PRIMUS_FORMULA double confidence(std::int64_t d) const {
    if (!confidences) return 1;
    return ::fmin(::exp(confidences[d] / length(d) + confidences[d + 1] / length(d + 1)), 1.0);
  }
  PRIMUS_FORMULA bool sorts() const { return sorts_pairs(terms); }

  // Returns a quantity that optimal transport sorts, for the pair that begins at document d. Paired: the
  // difference between the log-probabilities of the two answers, under the model (side 0) or the reference
  // (side 1). Unpaired: the log-ratio of the chosen (side 0) or the rejected answer (side 1).
  PRIMUS_FORMULA double transported(std::int64_t d, bool paired, int side) const {
    if (!paired) return ratio(d + side);
    return side == 0 ? sums[d] - sums[d + 1] : reference_of(d) - reference_of(d + 1);
  }
  // Returns the number of pairs whose quantity is smaller than that of the pair at d.
  PRIMUS_FORMULA std::int64_t rank_of(std::int64_t d, bool paired, int side) const {
    const double mine = transported(d, paired, side);
    std::int64_t rank = 0;
    for (std::int64_t other = 0; other + 1 < documents; ++other) {
      if (!begins_pair(other)) continue;
      const double theirs = transported(other, paired, side);
      if (theirs < mine || (theirs == mine && other < d)) ++rank;
    }
    return rank;
  }
  // Writes the quantities of document d to their places in `sorted`, if d begins a pair.
  PRIMUS_FORMULA void sort(std::int64_t d) const {
    if (!sorts() || !begins_pair(d)) return;
    if (terms.weight_of(PreferenceType::kAot) != 0) sort(d, true);
    if (terms.weight_of(PreferenceType::kAotUnpaired) != 0) sort(d, false);
  }
  PRIMUS_FORMULA void sort(std::int64_t d, bool paired) const {
    for (int side = 0; side < 2; ++side)
      in_order(paired, side)[rank_of(d, paired, side)] = transported(d, paired, side);
  }
  PRIMUS_FORMULA double* in_order(bool paired, int side) const {
    return sorted + ((paired ? 0 : 2) + side) * documents;
  }
  // Adds the optimal-transport loss of the pair at d. Requires that sort() has run for all pairs.
  PRIMUS_FORMULA void transport(std::int64_t d, bool paired, PairLoss& out) const {
    const double weight = terms.weight_of(paired ? PreferenceType::kAot : PreferenceType::kAotUnpaired);
    const SmoothedLoss s =
        smoothed(terms, transported(d, paired, 0) - in_order(paired, 1)[rank_of(d, paired, 0)]);
    if (paired) {
      out.add(weight, s.loss, s.slope, -s.slope);
      return;
    }
    // The rejected answer is compared with the chosen answer that has the same rank.
    const SmoothedLoss r = smoothed(terms, in_order(paired, 0)[rank_of(d, paired, 1)] - ratio(d + 1));
    out.add(weight, s.loss, s.slope, -r.slope);
  }

  PRIMUS_FORMULA PairLoss dpo(std::int64_t d) const {
    PairLoss out;
    const double beta = terms.beta, eps = terms.smoothing, c = ratio(d), r = ratio(d + 1);
    const Score chosen = score_of(terms, c), rejected = score_of(terms, r);
    const double x = beta * (chosen.value - rejected.value);
    const double mean_delta = chosen.value / length(d) - rejected.value / length(d + 1);
    const double xc = beta * c, xr = beta * r, xu = beta * (c - r);
    const auto bell = [](double y) { return logistic(y) * logistic(-y); };  // derivative of logistic
    // Adds a loss of x with this derivative with respect to x.
    const auto by_x = [&](double weight, double loss, double slope) {
      out.add(weight, loss, beta * slope * chosen.slope, -beta * slope * rejected.slope);
    };
    const auto by_mean = [&](double weight, double loss, double slope) {
      out.add(weight, loss, slope * chosen.slope / length(d), -slope * rejected.slope / length(d + 1));
    };
    for (int i = 0; i < kPreferenceTypes; ++i) {
      const double w = terms.type_weights[i];
      if (w == 0) continue;
      switch (static_cast<PreferenceType>(i)) {
        case PreferenceType::kSigmoid:
          by_x(w, -log_logistic(x), -logistic(-x));
          break;
        case PreferenceType::kHinge:
          by_x(w, ::fmax(1 - x, 0.0), x < 1 ? -1.0 : 0.0);
          break;
        case PreferenceType::kIpo: {
          const double error = mean_delta - 1 / (2 * beta);
          by_mean(w, error * error, 2 * error);
          break;
        }
        case PreferenceType::kSigmoidNorm:
          by_mean(w, -log_logistic(beta * mean_delta), -beta * logistic(-beta * mean_delta));
          break;
        case PreferenceType::kExoPair: {
          const double win = log_logistic(x) - ::log1p(-eps), lose = log_logistic(-x) - ::log(eps);
          by_x(w, logistic(x) * win + logistic(-x) * lose, bell(x) * (win - lose));
          break;
        }
        case PreferenceType::kNcaPair:
          out.add(w, -log_logistic(xc) - 0.5 * log_logistic(-xc) - 0.5 * log_logistic(-xr),
                  beta * (0.5 * logistic(xc) - logistic(-xc)), beta * 0.5 * logistic(xr));
          break;
        case PreferenceType::kRobust:
          by_x(w / (1 - 2 * eps), eps * log_logistic(-x) - (1 - eps) * log_logistic(x),
               -(1 - eps) * logistic(-x) - eps * logistic(x));
          break;
        case PreferenceType::kBcoPair:
          out.add(w, -log_logistic(xc) - log_logistic(-xr), -beta * logistic(-xc), beta * logistic(xr));
          break;
        case PreferenceType::kSppoHard: {
          const double win = c - 0.5 / beta, lose = r + 0.5 / beta;
          out.add(w, win * win + lose * lose, 2 * win, 2 * lose);
          break;
        }
        case PreferenceType::kAot:
          transport(d, true, out);
          break;
        case PreferenceType::kAotUnpaired:
          transport(d, false, out);
          break;
        case PreferenceType::kApoZero:
          out.add(w, logistic(-xc) + logistic(xr), -beta * bell(xc), beta * bell(xr));
          break;
        case PreferenceType::kApoDown:
          out.add(w, logistic(xc) + logistic(-xu), beta * (bell(xc) - bell(xu)), beta * bell(xu));
          break;
        case PreferenceType::kDiscopop: {
          const double mix = logistic(x / terms.tau), turn = bell(x / terms.tau) / terms.tau;
          const double soft = -log_logistic(x), hard = ::exp(-x);
          by_x(w, soft * (1 - mix) + hard * mix,
               -logistic(-x) * (1 - mix) - hard * mix + (hard - soft) * turn);
          break;
        }
        default:  // kLikelihood is part of the likelihood loss
          break;
      }
    }
    return out;
  }

  using Metrics = PreferenceMetricSums;

  // Writes the derivatives with respect to the sums of document d and of its pair. Adds their metrics.
  PRIMUS_FORMULA void pair(std::int64_t d, float* slopes, Metrics& metrics) const {
    const double share = 1 / total(PreferenceTotal::kUnits);
    const bool reads_ratios = terms.form == PreferenceForm::kDpo;
    const bool averages = terms.form == PreferenceForm::kOrpo || terms.averages;
    const double scale_c = averages ? 1 / length(d) : 1, scale_r = averages ? 1 / length(d + 1) : 1;
    const double c = sums[d] * scale_c, r = sums[d + 1] * scale_r;
    PairLoss of;
    if (terms.form == PreferenceForm::kDpo) {
      of = dpo(d);
    } else if (terms.form == PreferenceForm::kCpo) {
      of = contrast_loss(terms, c, r);
    } else if (terms.form == PreferenceForm::kReward) {
      of = score_loss(terms, ratio(d) - ratio(d + 1), c + r);
      metrics.add(PreferenceMetric::kScores, share * (c + r) / 2);
    } else {
      double log_odds = 0;
      of = odds_loss(terms, c, r, log_odds);
      metrics.add(PreferenceMetric::kLogOddsChosen, share * log_odds);
      metrics.add(PreferenceMetric::kLogOddsRatio, share * log_logistic(log_odds));
    }
    const double weighted = share * confidence(d);
    slopes[2 * d] = static_cast<float>(weighted * of.chosen * scale_c);
    slopes[2 * d + 2] = static_cast<float>(weighted * of.rejected * scale_r);
    slopes[2 * d + 1] = slopes[2 * d + 3] = 0;
    double loss = weighted * of.loss;
    if (terms.likelihood_weight != 0) {
      const double per_token = 1 / total(PreferenceTotal::kLikelihoodTokens);
      slopes[2 * d + 1] = static_cast<float>(-terms.likelihood_weight * per_token);
      metrics.add(PreferenceMetric::kLikelihoodLoss, -per_token * likelihoods[d]);
      loss -= terms.likelihood_weight * per_token * likelihoods[d];
    }
    metrics.add(PreferenceMetric::kLoss, loss);
    const double reward_c = terms.beta * (reads_ratios ? ratio(d) : c);
    const double reward_r = terms.beta * (reads_ratios ? ratio(d + 1) : r);
    metrics.add(PreferenceMetric::kChosenRewards, share * reward_c);
    metrics.add(PreferenceMetric::kRejectedRewards, share * reward_r);
    metrics.add(PreferenceMetric::kAccuracies, reward_c > reward_r ? share : 0.0);
    metrics.add(PreferenceMetric::kMargins, share * (reward_c - reward_r));
    metrics.add(PreferenceMetric::kChosenLogProbs, share * c);
    metrics.add(PreferenceMetric::kRejectedLogProbs, share * r);
  }

  // Like pair(), for a single answer of KTO. `divergence`: the estimate of the KL divergence, at least 0.
  PRIMUS_FORMULA void single(std::int64_t d, double divergence, float* slopes, Metrics& metrics) const {
    const bool good = roles[d] == PreferenceLoss::kChosen;
    const double sign = good ? 1 : -1, share = 1 / total(PreferenceTotal::kUnits);
    const double weight = share * (good ? terms.desirable : terms.undesirable), u = ratio(d);
    double loss = 0, slope = 0;
    const auto add = [&](PreferenceType type, double baseline) {
      const double x = sign * terms.beta * (u - baseline), w = weight * terms.weight_of(type);
      loss += w * logistic(-x);
      slope -= w * sign * terms.beta * logistic(x) * logistic(-x);
    };
    add(PreferenceType::kKto, divergence);
    add(PreferenceType::kApoZeroUnpaired, 0);
    slopes[2 * d] = static_cast<float>(slope);
    slopes[2 * d + 1] = 0;
    const double part = 1 / total(good ? PreferenceTotal::kChosen : PreferenceTotal::kRejected);
    metrics.add(PreferenceMetric::kLoss, loss);
    metrics.add(good ? PreferenceMetric::kChosenRewards : PreferenceMetric::kRejectedRewards,
                part * terms.beta * u);
    metrics.add(PreferenceMetric::kMargins, sign * part * terms.beta * u);
    metrics.add(good ? PreferenceMetric::kChosenLogProbs : PreferenceMetric::kRejectedLogProbs,
                part * sums[d]);
  }

  // Writes the slopes of document d. If d begins a pair, also writes the slopes of d + 1; the call for d + 1
  // then writes nothing.
  PRIMUS_FORMULA void document(std::int64_t d, double divergence, float* slopes, Metrics& metrics) const {
    const bool alone = terms.form == PreferenceForm::kKto;
    if (!alone && begins_pair(d)) {
      pair(d, slopes, metrics);
    } else if (alone && (roles[d] == PreferenceLoss::kChosen || roles[d] == PreferenceLoss::kRejected)) {
      single(d, divergence, slopes, metrics);
    } else if (alone || d == 0 || !begins_pair(d - 1)) {
      slopes[2 * d] = slopes[2 * d + 1] = 0;
    }
  }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
