#include "turbo/channel_gate/channel_gate.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool is_fp32_like(const Tensor& x, const Tensor& other) {
  return x.dtype == DType::kF32 && x.rows() == other.rows() && x.cols() == other.cols();
}

}  // namespace

bool ChannelGates::fit() const {
  return is_float(z) && b.dtype == z.dtype && b.rows() == z.rows() && b.cols() > 0 &&
         z.cols() % b.cols() == 0 && a_log.dtype == DType::kF32 && a_log.elements() == heads() &&
         bias.dtype == DType::kF32 && bias.elements() == z.cols() && lower_bound <= 0;
}

void ChannelGateForward::check() const {
  PRIMUS_CHECK(kId, of.fit());
  PRIMUS_CHECK(kId, is_fp32_like(g, of.z) && is_fp32_like(beta, of.b));
}

void ChannelGateBackward::check() const {
  PRIMUS_CHECK(kId, of.fit());
  PRIMUS_CHECK(kId, is_fp32_like(d_g, of.z) && is_fp32_like(d_beta, of.b));
  PRIMUS_CHECK(kId, same(d_z, of.z) && same(d_b, of.b));
}

void ChannelGateBackwardWeight::check() const {
  PRIMUS_CHECK(kId, of.fit());
  PRIMUS_CHECK(kId, is_fp32_like(d_g, of.z));
  PRIMUS_CHECK(kId, d_weight.dtype == DType::kF32 && d_weight.elements() == of.z.cols() + of.heads());
}

void ChannelGateBias::check() const {
  PRIMUS_CHECK(kId, x.dtype == DType::kF32);
  PRIMUS_CHECK(kId, low > 0 && high > low);
}

}  // namespace primus::turbo
