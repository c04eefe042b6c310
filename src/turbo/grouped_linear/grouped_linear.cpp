#include "turbo/grouped_linear/grouped_linear.h"

#include <cassert>

namespace primus::turbo {
namespace {

[[maybe_unused]] bool is_float(const Tensor& tensor) {
  return tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16;
}

[[maybe_unused]] bool are_offsets(const Tensor& offsets, std::int64_t experts) {
  return offsets.dtype == DType::kI32 && offsets.elements() == experts + 1;
}

}  // namespace

void GroupedGemm::check() const {
  [[maybe_unused]] const Tensor& weights = role == GemmRole::kWeightGradient ? c : b;
  assert(is_float(a) && b.dtype == a.dtype && weights.shape.rank() == 3);
  assert(are_offsets(offsets, weights.shape[0]));
  assert(a_rows.absent() || a_rows.dtype == DType::kI32);
  assert(b_rows.absent() || (b_rows.dtype == DType::kI32 && role == GemmRole::kWeightGradient));
  switch (role) {
    case GemmRole::kForward:
      assert(!accumulate && is_float(c) && c.rows() == rows());
      assert(a.cols() == b.shape[2] && c.cols() == b.shape[1]);
      break;
    case GemmRole::kInputGradient:
      assert(!accumulate && is_float(c) && c.rows() == rows());
      assert(a.cols() == b.shape[1] && c.cols() == b.shape[2]);
      break;
    case GemmRole::kWeightGradient:
      assert(c.dtype == DType::kF32 && rows() == (b_rows.absent() ? b.rows() : b_rows.elements()));
      assert(c.shape[1] == a.cols() && c.shape[2] == b.cols());
      break;
  }
}

double GroupedGemm::flops() const {
  const Tensor& weights = role == GemmRole::kWeightGradient ? c : b;
  return 2 * static_cast<double>(rows()) * static_cast<double>(weights.shape[1]) *
         static_cast<double>(weights.shape[2]);
}

void GroupedBias::check() const {
  assert(is_float(x) && y.dtype == x.dtype && y.shape == x.shape);
  assert(bias.dtype == x.dtype && bias.shape.rank() == 2 && bias.cols() == x.cols());
  assert(are_offsets(offsets, bias.rows()));
}

void GroupedBiasBackward::check() const {
  assert(is_float(d_y) && d_bias.dtype == DType::kF32);
  assert(d_bias.shape.rank() == 2 && d_bias.cols() == d_y.cols() && are_offsets(offsets, d_bias.rows()));
}

}  // namespace primus::turbo
