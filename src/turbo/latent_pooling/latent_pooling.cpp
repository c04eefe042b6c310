#include "turbo/latent_pooling/latent_pooling.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool is_projection(const PoolingShape& s, const Tensor& x) {
  return is_float(x) && x.shape == Shape{s.rows(), s.width()};
}

bool is_bias(const PoolingShape& s, const Tensor& bias) {
  return bias.dtype == DType::kF32 && bias.shape == Shape{s.ratio, s.parts() * s.dim};
}

bool is_pooled(const PoolingShape& s, const Tensor& out, const Tensor& x) {
  return out.dtype == x.dtype && out.shape == Shape{s.pooled(), s.dim};
}

}  // namespace

void PoolingShape::check(KernelId kernel) const {
  PRIMUS_CHECK(kernel, batch > 0 && dim > 0 && ratio > 0 && ratio <= kMaxRatio && sequence >= ratio);
}

void LatentPooling::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, is_projection(shape, x) && is_bias(shape, bias) && is_pooled(shape, out, x));
}

void LatentPoolingBackward::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, is_projection(shape, x) && is_bias(shape, bias) && is_pooled(shape, d_out, x));
  PRIMUS_CHECK(kId, same(d_x, x) && same(d_bias, bias));
}

void WindowAndPooled::check() const {
  PRIMUS_CHECK(kId, batch > 0 && sequence > 0 && window > 0 && ratio >= 0);
  const std::int64_t tokens = batch * sequence, more = chosen.absent() ? blocks() : chosen.cols();
  PRIMUS_CHECK(kId, chosen.absent() || (ratio > 0 && chosen.dtype == DType::kI32 && chosen.rows() == tokens));
  PRIMUS_CHECK(kId, selected.dtype == DType::kI32 && selected.shape == Shape{tokens, window + more});
}

}  // namespace primus::turbo
