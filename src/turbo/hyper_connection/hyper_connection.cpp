#include "turbo/hyper_connection/hyper_connection.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

// Returns whether x holds rows of streams, and y a layer's inputs or outputs for the same tokens.
bool is_streams(const HyperShape& s, const Tensor& x, const Tensor& y) {
  return is_float(x) && y.dtype == x.dtype && x.rows() == y.rows() && x.cols() == s.streams * y.cols();
}

bool is_factors(const Tensor& factors, std::int64_t tokens, std::int64_t columns) {
  return factors.dtype == DType::kF32 && factors.shape == Shape{tokens, columns};
}

bool is_affine(const HyperShape& s, const Tensor& base, const Tensor& scale) {
  return is_vector(base, DType::kF32, s.products()) && is_vector(scale, DType::kF32, s.scales());
}

}  // namespace

void HyperShape::check(KernelId kernel) const {
  PRIMUS_CHECK(kernel, streams >= 1 && streams <= kMaxStreams);
  PRIMUS_CHECK(kernel, iterations >= 0 && iterations <= kMaxIterations);
}

void HyperRead::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, is_streams(shape, x, y) && is_factors(products, x.rows(), shape.products()));
  PRIMUS_CHECK(kId, is_affine(shape, base, scale) && is_vector(rstd, DType::kF32, x.rows()));
  PRIMUS_CHECK(kId, shape.mixes() ? is_factors(mixing, x.rows(), shape.mixing()) : mixing.absent());
}

void HyperReadBackward::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, is_streams(shape, x, d_y) && is_factors(products, x.rows(), shape.products()));
  PRIMUS_CHECK(kId, is_affine(shape, base, scale) && is_vector(rstd, DType::kF32, x.rows()));
  PRIMUS_CHECK(kId, d_mixing.absent() || is_factors(d_mixing, x.rows(), shape.mixing()));
  PRIMUS_CHECK(kId, same(d_x, x) && (previous.absent() || same(previous, x)));
  PRIMUS_CHECK(kId, is_factors(d_products, x.rows(), shape.products()));
  PRIMUS_CHECK(kId, is_factors(d_base, x.rows(), shape.products()));
  PRIMUS_CHECK(kId, is_factors(d_scale, x.rows(), shape.scales()));
}

void HyperWrite::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, is_streams(shape, x, out) && same(z, x));
  PRIMUS_CHECK(kId, is_factors(mixing, x.rows(), shape.mixing()));
}

void HyperWriteBackward::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, is_streams(shape, x, out) && same(d_z, x) && same(d_x, x) && same(d_out, out));
  PRIMUS_CHECK(kId, previous.absent() || same(previous, x));
  PRIMUS_CHECK(kId, is_factors(mixing, x.rows(), shape.mixing()) && same(d_mixing, mixing));
}

}  // namespace primus::turbo
