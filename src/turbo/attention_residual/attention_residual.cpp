#include "turbo/attention_residual/attention_residual.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool are_factors(const Tensor& factors, const ResidualCandidates& of) {
  return factors.dtype == DType::kF32 && factors.rows() == of.stream.rows() && factors.cols() == of.count();
}

}  // namespace

bool ResidualCandidates::fit() const {
  const auto is_weight = [&](const Tensor& w) {
    return w.dtype == DType::kF32 && w.elements() == stream.cols();
  };
  return is_float(stream) && checkpoints.dtype == stream.dtype && checkpoints.rows() == stream.rows() &&
         checkpoints.cols() % stream.cols() == 0 && count() >= 2 && count() <= kMax && is_weight(norm) &&
         is_weight(proj) && eps >= 0;
}

void AttentionResidual::check() const {
  PRIMUS_CHECK(kId, of.fit());
  PRIMUS_CHECK(kId, same(out, of.stream));
}

void AttentionResidualBackward::check() const {
  PRIMUS_CHECK(kId, of.fit());
  PRIMUS_CHECK(kId, same(d_out, of.stream));
  PRIMUS_CHECK(kId, same(d_stream, of.stream) && same(d_checkpoints, of.checkpoints));
  PRIMUS_CHECK(kId, previous_stream.absent() || same(previous_stream, of.stream));
  PRIMUS_CHECK(kId, previous_checkpoints.absent() || same(previous_checkpoints, of.checkpoints));
  PRIMUS_CHECK(kId, are_factors(factors, of));
}

void AttentionResidualBackwardWeight::check() const {
  PRIMUS_CHECK(kId, of.fit());
  PRIMUS_CHECK(kId, are_factors(factors, of));
  PRIMUS_CHECK(kId, same(d_norm, of.norm) && same(d_proj, of.proj));
}

}  // namespace primus::turbo
