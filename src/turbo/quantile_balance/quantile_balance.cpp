#include "turbo/quantile_balance/quantile_balance.h"

#include "turbo/check.h"
#include "turbo/router/router.h"

namespace primus::turbo {
namespace {

bool fit(const MarginBins& bins, std::int32_t top_k, const Tensor& counts, const Tensor& bias) {
  return bins.low < bins.high && top_k > 0 && counts.dtype == DType::kI32 && counts.cols() >= 2 &&
         counts.rows() <= RouterRule::kMaxExperts && top_k <= counts.rows() && bias.dtype == DType::kF32 &&
         bias.elements() == counts.rows();
}

}  // namespace

void MarginHistogram::check() const {
  PRIMUS_CHECK(kId, fit(bins, top_k, counts, bias));
  PRIMUS_CHECK(kId, logits.dtype == DType::kF32 && logits.cols() == counts.rows());
}

void QuantileBiasUpdate::check() const {
  PRIMUS_CHECK(kId, fit(bins, top_k, counts, bias));
  PRIMUS_CHECK(kId, kept >= 0 && kept < 1);
}

}  // namespace primus::turbo
