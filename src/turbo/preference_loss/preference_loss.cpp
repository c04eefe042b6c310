#include "turbo/preference_loss/preference_loss.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool fit(const Tensor& factors, const Tensor& starts, const Tensor& per_token, std::int64_t documents) {
  return is_vector(factors, DType::kF32, per_token.elements()) && per_token.dtype == DType::kF32 &&
         is_vector(starts, DType::kI32, documents + 1);
}

}  // namespace

void DocumentSums::check() const {
  PRIMUS_CHECK(kId, sums.dtype == DType::kF64 && fit(factors, starts, losses, sums.elements()));
  PRIMUS_CHECK(kId, collisions.absent() || is_vector(collisions, DType::kF32, losses.elements()));
}

void PreferenceLoss::check() const {
  const std::int64_t documents = roles.elements();
  PRIMUS_CHECK(kId, roles.dtype == DType::kI32 && is_vector(lengths, DType::kF32, documents));
  PRIMUS_CHECK(kId, is_vector(sums, DType::kF64, documents));
  PRIMUS_CHECK(kId, reference.absent() || is_vector(reference, DType::kF64, documents));
  PRIMUS_CHECK(kId, likelihoods.absent() ? terms.likelihood_weight == 0
                                         : is_vector(likelihoods, DType::kF64, documents));
  PRIMUS_CHECK(kId, confidences.absent() || is_vector(confidences, DType::kF64, documents));
  PRIMUS_CHECK(kId, is_vector(totals, DType::kF64, kPreferenceTotals));
  PRIMUS_CHECK(kId, is_vector(slopes, DType::kF32, 2 * documents) && metrics.dtype == DType::kF32);
  for (const std::int8_t place : places) PRIMUS_CHECK(kId, place >= -1 && place < metrics.elements());
  PRIMUS_CHECK(kId, microbatches >= 1 && terms.beta > 0);
}

void DocumentWeights::check() const {
  PRIMUS_CHECK(kId, slopes.dtype == DType::kF32 && slopes.cols() == 2);
  PRIMUS_CHECK(kId, fit(factors, starts, weights, slopes.rows()));
  PRIMUS_CHECK(kId,
               likelihood_factors.absent() || is_vector(likelihood_factors, DType::kF32, weights.elements()));
  PRIMUS_CHECK(kId, losses.absent() || is_vector(losses, DType::kF32, weights.elements()));
}

}  // namespace primus::turbo
