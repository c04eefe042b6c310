#include "turbo/grouped_linear/grouped_linear.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool are_offsets(const Tensor& offsets, std::int64_t experts) {
  return offsets.dtype == DType::kI32 && offsets.elements() == experts + 1;
}

}  // namespace

void GroupedGemm::check() const {
  const Tensor& weights = role == GemmRole::kWeightGradient ? c : b;
  PRIMUS_CHECK(kId, is_float(a) && b.dtype == a.dtype && weights.shape.rank() == 3);
  PRIMUS_CHECK(kId, are_offsets(offsets, weights.shape[0]));
  PRIMUS_CHECK(kId, a_rows.absent() || a_rows.dtype == DType::kI32);
  PRIMUS_CHECK(kId, b_rows.absent() || (b_rows.dtype == DType::kI32 && role == GemmRole::kWeightGradient));
  switch (role) {
    case GemmRole::kForward:
      PRIMUS_CHECK(kId, !accumulate && is_float(c) && c.rows() == rows());
      PRIMUS_CHECK(kId, a.cols() == b.shape[2] && c.cols() == b.shape[1]);
      break;
    case GemmRole::kInputGradient:
      PRIMUS_CHECK(kId, !accumulate && is_float(c) && c.rows() == rows());
      PRIMUS_CHECK(kId, a.cols() == b.shape[1] && c.cols() == b.shape[2]);
      break;
    case GemmRole::kWeightGradient:
      PRIMUS_CHECK(kId, is_float(c) && rows() == (b_rows.absent() ? b.rows() : b_rows.elements()));
      PRIMUS_CHECK(kId, c.shape[1] == a.cols() && c.shape[2] == b.cols());
      break;
  }
}

double GroupedGemm::flops() const {
  const Tensor& weights = role == GemmRole::kWeightGradient ? c : b;
  return 2 * static_cast<double>(rows()) * static_cast<double>(weights.shape[1]) *
         static_cast<double>(weights.shape[2]);
}

void GroupedBias::check() const {
  PRIMUS_CHECK(kId, is_float(x) && same(y, x));
  PRIMUS_CHECK(kId, bias.dtype == x.dtype && bias.shape.rank() == 2 && bias.cols() == x.cols());
  PRIMUS_CHECK(kId, are_offsets(offsets, bias.rows()));
}

void GroupedBiasBackward::check() const {
  PRIMUS_CHECK(kId, is_float(d_y) && d_bias.dtype == DType::kF32);
  PRIMUS_CHECK(
      kId, d_bias.shape.rank() == 2 && d_bias.cols() == d_y.cols() && are_offsets(offsets, d_bias.rows()));
}

}  // namespace primus::turbo
