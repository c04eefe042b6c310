// Sums, losses, derivatives and metrics of the answers of a microbatch, in fp64; shared by all devices.
#pragma once

#include <cstdint>

#include "turbo/formula.h"
#include "turbo/policy_loss/parts.h"
#include "turbo/policy_loss/policy_loss.h"

namespace primus::turbo::PRIMUS_KERNELS {

// The tokens and documents of a microbatch, as the kernels see them.
struct PolicyDocuments {
  PolicyTerms terms;
  const float *losses, *mask;
  const float *old, *sampled, *reference, *entropies, *chosen;  // may be null
  const float* targets;  // the advantage or the return of each token, or null
  double microbatches, microbatch_tokens, entropy_coef;
  bool adds_answers;
  const std::int32_t *starts, *roles;
  const float* advantages;  // null if tokens are independent, and so is `sums`
  const double *sums, *totals;
  float *weights, *entropy_weights;  // the second is null without an entropy bonus

  PRIMUS_FORMULA double log_prob(std::int64_t t) const { return -static_cast<double>(losses[t]); }
  PRIMUS_FORMULA double old_of(std::int64_t t) const {
    return old ? static_cast<double>(old[t]) : log_prob(t);
  }
  PRIMUS_FORMULA double sampled_of(std::int64_t t) const {
    return sampled ? static_cast<double>(sampled[t]) : old_of(t);
  }
  PRIMUS_FORMULA double sum(std::int64_t d, PolicySum which) const {
    return sums[d * kPolicySums + static_cast<int>(which)];
  }
  PRIMUS_FORMULA bool corrects_tokens() const {
    return terms.correction == PolicyCorrection::kTokenTruncate ||
           terms.correction == PolicyCorrection::kTokenMask;
  }
  PRIMUS_FORMULA bool corrects_sequences() const {
    return terms.correction == PolicyCorrection::kSequenceTruncate ||
           terms.correction == PolicyCorrection::kSequenceMask;
  }
  // Returns the correction's ratio for old - sampled = `gap`.
  PRIMUS_FORMULA double correction_of(double gap) const {
    const double ratio = ::exp(gap);
    if (terms.correction == PolicyCorrection::kTokenTruncate ||
        terms.correction == PolicyCorrection::kSequenceTruncate)
      return ::fmin(::fmax(ratio, terms.correction_min), terms.correction_max);
    return ratio < terms.correction_min || ratio > terms.correction_max ? 0.0 : ratio;
  }
  PRIMUS_FORMULA double token_correction(std::int64_t t) const {
    return corrects_tokens() ? correction_of(old_of(t) - sampled_of(t)) : 1.0;
  }
  PRIMUS_FORMULA double chosen_of(std::int64_t t) const { return chosen ? double{chosen[t]} : 1.0; }
  // Returns the KL term of a token, before the multiplication by the ratio.
  PRIMUS_FORMULA double divergence(std::int64_t t) const {
    if (!reference) return 0;
    const double x = -static_cast<double>(reference[t]) - log_prob(t);
    return ::expm1(x) - x;
  }

  static constexpr double kLargest = 20, kSmallest = -18.420680743952367;  // TRL's limits: 20 and ln 1e-8
  // Adds token t to the sums of its document.
  PRIMUS_FORMULA void sum_token(std::int64_t t, PolicyDocumentSums& to) const {
    if (mask[t] == 0) return;
    const double d = log_prob(t) - old_of(t), correction = token_correction(t);
    double clamped = ::fmin(::fmax(d, -kLargest), kLargest);
    if (corrects_tokens()) clamped += ::fmin(::fmax(::log(correction), kSmallest), kLargest);
    to.add(PolicySum::kTokens, 1);
    to.add(PolicySum::kRatio, d);
    to.add(PolicySum::kClamped, clamped);
    to.add(PolicySum::kGap, old_of(t) - sampled_of(t));
    to.add(PolicySum::kDrift, sampled_of(t) - log_prob(t));
    to.add(PolicySum::kCorrection, chosen_of(t) * correction);
    to.add(PolicySum::kDivergence, divergence(t));
  }

  // Returns the loss without KL term and corrections, as a function of the ratio. Not for losses of ln p.
  PRIMUS_FORMULA PolicySlope by_ratio(double ratio, double advantage) const {
    if (terms.type == PolicyType::kSapo) {
      const double heat = advantage > 0 ? terms.sapo_positive : terms.sapo_negative;
      const double gate = 1 / (1 + ::exp(-heat * (ratio - 1)));
      return {-4 * gate * advantage / heat, -4 * gate * (1 - gate) * advantage};
    }
    const double capped = limited(ratio), clipped = ::fmin(::fmax(ratio, 1 - terms.low), 1 + terms.high);
    const double free_slope = capped == ratio ? advantage : 0.0;
    const double clipped_slope = clipped == ratio ? advantage : 0.0;
    // The minimum of two equal numbers has the mean of both derivatives, as in PyTorch.
    if (capped * advantage < clipped * advantage) return {-capped * advantage, -free_slope};
    if (capped * advantage > clipped * advantage) return {-clipped * advantage, -clipped_slope};
    return {-capped * advantage, -0.5 * (free_slope + clipped_slope)};
  }
  PRIMUS_FORMULA double limited(double ratio) const {
    return terms.delta > 0 ? ::fmin(ratio, terms.delta) : ratio;
  }
  PRIMUS_FORMULA bool of_log_prob() const {
    return terms.type == PolicyType::kCispo || terms.type == PolicyType::kVespo;
  }

  PRIMUS_FORMULA double answers() const { return ::fmax(totals[0], 1.0); }
  PRIMUS_FORMULA double tokens() const { return ::fmax(totals[1], 1.0); }
  PRIMUS_FORMULA double share_of(double length) const {
    switch (terms.average) {
      case PolicyAverage::kAnswerMeans:
        return 1 / (answers() * length);
      case PolicyAverage::kMicrobatchMeans:
        return 1 / (microbatches * ::fmax(microbatch_tokens, 1.0));
      case PolicyAverage::kTokens:
        return 1 / tokens();
      case PolicyAverage::kLengths:
        return 1 / (answers() * terms.max_length);
      default:
        return 1 / answers();
    }
  }
  // Returns VESPO's phi(w) = exp(lambda + k ln w - lambda w).
  PRIMUS_FORMULA double phi_of(double log_ratio, double advantage) const {
    const VespoTerms& vespo = terms.vespo;
    const double k = advantage >= 0 ? vespo.k_positive : vespo.k_negative;
    const double lambda = ::fmax(advantage >= 0 ? vespo.lambda_positive : vespo.lambda_negative, 1e-4);
    const double log_w = ::fmin(::fmax(log_ratio, kSmallest), kLargest);
    return ::exp(lambda + k * log_w - lambda * ::exp(log_w));
  }

  PRIMUS_FORMULA PolicyAnswer answer(std::int64_t d) const {
    if (!sums) return {.share = 1 / tokens()};
    const double count = sum(d, PolicySum::kTokens), length = ::fmax(count, 1.0);
    PolicyAnswer a{.advantage = static_cast<double>(advantages[d]), .share = share_of(length)};
    if (terms.ratio == PolicyRatio::kMean) a.ratio = ::exp(sum(d, PolicySum::kRatio) / length);
    if (terms.ratio == PolicyRatio::kSum) a.ratio = ::exp(sum(d, PolicySum::kRatio));
    if (corrects_sequences()) a.correction = correction_of(sum(d, PolicySum::kGap));
    if (terms.type == PolicyType::kVespo) a.phi = phi_of(sum(d, PolicySum::kClamped), a.advantage);
    if (terms.masks_drift) a.kept = a.advantage >= 0 || sum(d, PolicySum::kDrift) / length <= terms.drift;
    if (terms.ratio == PolicyRatio::kToken) return a;
    // All tokens share the ratio, so its derivative is a sum over the tokens.
    double slope = 0;
    if (terms.ratio == PolicyRatio::kSum) {
      slope = by_ratio(a.ratio, a.advantage).slope;
    } else {
      if (!of_log_prob() && a.kept)
        slope = by_ratio(a.ratio, a.advantage).slope * a.correction * sum(d, PolicySum::kCorrection);
      if (terms.bias_correction) slope += terms.beta * sum(d, PolicySum::kDivergence);
      slope /= length;
    }
    a.by_token = a.share * slope * a.ratio;
    return a;
  }

  // Adds the metrics to which an answer contributes as a whole, not per token.
  PRIMUS_FORMULA void answer_metrics(const PolicyAnswer& a, PolicyMetricSums& metrics) const {
    if (!adds_answers) return;
    const double part = 1 / answers();
    if (terms.average == PolicyAverage::kAnswers)
      add_loss(a.share * by_ratio(a.ratio, a.advantage).loss, metrics);
    if (terms.type == PolicyType::kVespo) metrics.add(PolicyMetric::kPhi, part * a.phi);
    if (corrects_sequences()) metrics.add(PolicyMetric::kCorrection, part * a.correction);
    if (terms.ratio != PolicyRatio::kToken) ratio_metrics(a.ratio, a.advantage, part, metrics);
  }
  PRIMUS_FORMULA void ratio_metrics(double ratio, double advantage, double part,
                                    PolicyMetricSums& metrics) const {
    metrics.add(PolicyMetric::kRatio, part * ratio);
    const double limit = terms.type == PolicyType::kCispo ? terms.high : 1 + terms.high;
    const bool low = limited(ratio) < 1 - terms.low && advantage < 0;
    const bool high = limited(ratio) > limit && advantage > 0;
    if (low) metrics.add(PolicyMetric::kLowClipped, part);
    if (high) metrics.add(PolicyMetric::kHighClipped, part);
    if (low || high) metrics.add(PolicyMetric::kClipped, part);
  }

  static PRIMUS_FORMULA void add_loss(double loss, PolicyMetricSums& metrics) {
    metrics.add(PolicyMetric::kLoss, loss);
    metrics.add(PolicyMetric::kPolicyLoss, loss);
  }
  // Writes the weight of the entropy of token t, and adds the metrics of the entropy.
  PRIMUS_FORMULA void entropy(std::int64_t t, double part, PolicyMetricSums& metrics) const {
    const double value = entropies ? part * static_cast<double>(entropies[t]) : 0.0;
    metrics.add(PolicyMetric::kEntropy, value);
    metrics.add(PolicyMetric::kLoss, -entropy_coef * value);
    if (entropy_weights) entropy_weights[t] = static_cast<float>(-entropy_coef * part);
  }

  // Writes the derivative of the loss with respect to the value of token t, and adds the token's metrics.
  PRIMUS_FORMULA void value(std::int64_t t, double share, PolicyMetricSums& metrics) const {
    const ValueLoss of = value_loss(terms, double{losses[t]}, double{old[t]}, double{targets[t]});
    weights[t] = static_cast<float>(share * terms.factor * of.slope);
    metrics.add(PolicyMetric::kLoss, share * terms.factor * of.loss);
    metrics.add(PolicyMetric::kPolicyLoss, share * of.loss);
    if (of.clipped) metrics.add(PolicyMetric::kClipped, share);
  }

  // Writes the weight of token t of answer `a`, and adds the token's metrics.
  PRIMUS_FORMULA void token(std::int64_t t, const PolicyAnswer& a, PolicyMetricSums& metrics) const {
    if (mask[t] == 0) {
      weights[t] = 0;
      return;
    }
    if (terms.type == PolicyType::kValues) return value(t, a.share, metrics);
    const bool own = terms.ratio == PolicyRatio::kToken;
    const double change = log_prob(t) - old_of(t), ratio = own ? ::exp(change) : a.ratio;
    const double advantage = targets ? double{targets[t]} : a.advantage;
    const double correction = token_correction(t), part = 1 / tokens();
    if (own) ratio_metrics(ratio, advantage, part, metrics);
    metrics.add(PolicyMetric::kSquaredChange, part * 0.5 * change * change);
    entropy(t, part, metrics);
    if (sampled) {
      metrics.add(PolicyMetric::kSamplingGap, part * ::fabs(old_of(t) - sampled_of(t)));
      if (corrects_tokens()) metrics.add(PolicyMetric::kCorrection, part * correction);
    }
    if (terms.average == PolicyAverage::kAnswers) {
      weights[t] = static_cast<float>(-a.by_token);
      return;
    }
    PolicySlope of;  // the loss as a function of ln p, without the part from the answer's ratio
    if (terms.type == PolicyType::kCispo) {
      of.slope = -::fmin(ratio, terms.high) * a.advantage;
      of.loss = of.slope * log_prob(t);
    } else if (terms.type == PolicyType::kVespo) {
      of.slope = -a.phi * a.advantage;
      of.loss = of.slope * log_prob(t);
    } else {
      of = by_ratio(ratio, advantage);
      of.slope = own ? of.slope * ratio : 0.0;
    }
    // VESPO's phi contains the correction.
    const double factor =
        (a.kept ? chosen_of(t) : 0.0) * (terms.type == PolicyType::kVespo ? 1.0 : correction * a.correction);
    of.loss *= factor;
    of.slope *= factor;
    if (reference) {
      const double k = divergence(t), scale = terms.bias_correction ? ratio : 1.0;
      const double by_log_prob = -::expm1(-static_cast<double>(reference[t]) - log_prob(t));
      of.loss += terms.beta * scale * k;
      of.slope += terms.beta * (scale * by_log_prob + (own && terms.bias_correction ? k * ratio : 0.0));
      metrics.add(PolicyMetric::kDivergence, part * scale * k);
    }
    weights[t] = static_cast<float>(-(a.share * of.slope + a.by_token));
    add_loss(a.share * of.loss, metrics);
  }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
