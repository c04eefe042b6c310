#include "turbo/dora/dora.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

// Returns whether `square` has one number for each column of a range of columns of x that begins at `first`.
bool is_of_columns(const Tensor& square, const Tensor& x, std::int64_t first) {
  return square.dtype == DType::kF32 && first >= 0 && first + square.elements() <= x.cols();
}

}  // namespace

void DoraNorm::check() const {
  PRIMUS_CHECK(kId, is_float(w) && w.shape.rank() == 2);
  PRIMUS_CHECK(kId, down.dtype == w.dtype && down.shape.rank() == 2 && down.cols() == w.cols());
  PRIMUS_CHECK(kId, up.dtype == w.dtype && up.shape.rank() == 2 && up.rows() == w.rows());
  PRIMUS_CHECK(kId, up.cols() == down.rows());
  PRIMUS_CHECK(kId, square.dtype == DType::kF32 && square.elements() == w.rows());
}

void DoraScale::check() const {
  PRIMUS_CHECK(kId, is_float(x) && x.shape.rank() == 2);
  PRIMUS_CHECK(kId, same(y, x));
  PRIMUS_CHECK(kId, magnitude.dtype == x.dtype && magnitude.elements() == square.elements());
  PRIMUS_CHECK(kId, is_of_columns(square, x, first));
}

void DoraBackwardMagnitude::check() const {
  PRIMUS_CHECK(kId, is_float(x) && x.shape.rank() == 2);
  PRIMUS_CHECK(kId, same(d_y, x));
  PRIMUS_CHECK(kId, is_of_columns(square, x, first));
  PRIMUS_CHECK(kId, is_float(d_magnitude) && d_magnitude.elements() == square.elements());
}

}  // namespace primus::turbo
