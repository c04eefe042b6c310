#include "turbo/linear/linear.h"

#include "turbo/check.h"

namespace primus::turbo {

void Gemm::check() const {
  PRIMUS_CHECK(kId, a.shape.rank() >= 1 && b.shape.rank() >= 1 && c.shape.rank() >= 1);
  for (const Tensor* t : {&a, &b, &c}) {
    PRIMUS_CHECK(kId, is_float(*t));
  }
  switch (role) {
    case GemmRole::kForward:
      PRIMUS_CHECK(kId, a.cols() == b.cols() && c.rows() == a.rows() && c.cols() == b.rows());
      break;
    case GemmRole::kInputGradient:
      PRIMUS_CHECK(kId, a.cols() == b.rows() && c.rows() == a.rows() && c.cols() == b.cols());
      break;
    case GemmRole::kWeightGradient:
      PRIMUS_CHECK(kId, a.rows() == b.rows() && c.rows() == a.cols() && c.cols() == b.cols());
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
