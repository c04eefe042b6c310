#include "turbo/linear/linear.h"

namespace primus::turbo {

void Gemm::check() const {
  assert(a.shape.rank() >= 1 && b.shape.rank() >= 1 && c.shape.rank() >= 1);
  for ([[maybe_unused]] const Tensor* t : {&a, &b, &c}) {
    assert(t->dtype == DType::kF32 || t->dtype == DType::kBF16);
  }
  assert(c.dtype == DType::kF32 || role != GemmRole::kWeightGradient);
  switch (role) {
    case GemmRole::kForward:
      assert(a.cols() == b.cols() && c.rows() == a.rows() && c.cols() == b.rows());
      break;
    case GemmRole::kInputGradient:
      assert(a.cols() == b.rows() && c.rows() == a.rows() && c.cols() == b.cols());
      break;
    case GemmRole::kWeightGradient:
      assert(a.rows() == b.rows() && c.rows() == a.cols() && c.cols() == b.cols());
      break;
  }
}

double Gemm::flops() const {
  // Both operands share one extent; the forward and input gradient keep a's rows, the weight gradient sums
  // over them.
  const auto left = static_cast<double>(a.elements());
  return 2 * left * static_cast<double>(role == GemmRole::kForward ? b.rows() : b.cols());
}

}  // namespace primus::turbo
