#include "turbo/policy_loss/policy_loss.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool fit(const PolicyTokens& tokens, std::int64_t count) {
  const auto is = [count](const Tensor& tensor) { return is_vector(tensor, DType::kF32, count); };
  const auto may_be = [&](const Tensor& tensor) { return tensor.absent() || is(tensor); };
  return is(tokens.losses) && is(tokens.mask) && may_be(tokens.old) && may_be(tokens.sampled) &&
         may_be(tokens.reference) && may_be(tokens.entropies) && may_be(tokens.chosen) &&
         may_be(tokens.advantages) && may_be(tokens.returns);
}

// Returns whether the terms fit tokens that have an advantage or a return each.
bool fit_independent(const PolicyTerms& terms, const PolicyTokens& tokens) {
  const bool values = terms.type == PolicyType::kValues;
  if (values != !tokens.returns.absent() || values != tokens.advantages.absent()) return false;
  if (terms.ratio != PolicyRatio::kToken || terms.average != PolicyAverage::kTokens || terms.masks_drift)
    return false;
  if (!values) {
    return terms.type == PolicyType::kClipped && terms.factor == 1 &&
           terms.correction != PolicyCorrection::kSequenceTruncate &&
           terms.correction != PolicyCorrection::kSequenceMask;
  }
  return terms.factor > 0 && terms.beta == 0 && !tokens.old.absent() && tokens.chosen.absent() &&
         terms.correction == PolicyCorrection::kNone;
}

// Returns whether the terms can be computed from these tokens.
bool fit(const PolicyTerms& terms, const PolicyTokens& tokens) {
  if (tokens.are_independent() || terms.type == PolicyType::kValues) {
    if (!fit_independent(terms, tokens)) return false;
  }
  const bool of_answers = terms.average == PolicyAverage::kAnswers;
  return (terms.beta != 0) == !tokens.reference.absent() &&
         of_answers == (terms.ratio == PolicyRatio::kSum) &&
         (!of_answers || (terms.type == PolicyType::kClipped && terms.beta == 0 && !terms.masks_drift &&
                          tokens.chosen.absent())) &&
         (terms.correction == PolicyCorrection::kNone || (!of_answers && !tokens.sampled.absent()));
}

}  // namespace

void PolicySums::check() const {
  PRIMUS_CHECK(kId, !tokens.are_independent());
  PRIMUS_CHECK(kId, fit(tokens, tokens.losses.elements()) && fit(terms, tokens));
  PRIMUS_CHECK(kId, sums.dtype == DType::kF64 && sums.cols() == kPolicySums);
  PRIMUS_CHECK(kId, is_vector(starts, DType::kI32, sums.rows() + 1));
}

void PolicyLoss::check() const {
  const std::int64_t documents = roles.elements();
  PRIMUS_CHECK(kId, fit(tokens, weights.elements()) && fit(terms, tokens) && weights.dtype == DType::kF32);
  if (entropy_coef == 0) {
    PRIMUS_CHECK(kId, entropy_weights.absent());
  } else {
    PRIMUS_CHECK(kId,
                 !tokens.entropies.absent() && is_vector(entropy_weights, DType::kF32, weights.elements()));
  }
  PRIMUS_CHECK(kId, roles.dtype == DType::kI32 && is_vector(starts, DType::kI32, documents + 1));
  if (tokens.are_independent()) {
    PRIMUS_CHECK(kId, advantages.absent() && sums.absent());
    PRIMUS_CHECK(kId, terms.type != PolicyType::kValues || entropy_coef == 0);
  } else {
    PRIMUS_CHECK(kId, is_vector(advantages, DType::kF32, documents));
    PRIMUS_CHECK(kId, is_vector(sums, DType::kF64, documents * kPolicySums) && sums.cols() == kPolicySums);
  }
  PRIMUS_CHECK(kId, is_vector(totals, DType::kF64, 2) && metrics.dtype == DType::kF32);
  for (const std::int8_t place : places) PRIMUS_CHECK(kId, place >= -1 && place < metrics.elements());
  PRIMUS_CHECK(kId, microbatches >= 1 && terms.max_length >= 1);
}

}  // namespace primus::turbo
