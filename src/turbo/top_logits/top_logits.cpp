#include "turbo/top_logits/top_logits.h"

#include "turbo/check.h"

namespace primus::turbo {

void TopLogits::check() const {
  PRIMUS_CHECK(kId, is_float(logits) && logits.shape.rank() == 2);
  PRIMUS_CHECK(kId, values.dtype == DType::kF32 && ids.dtype == DType::kI32);
  PRIMUS_CHECK(kId, values.rows() == logits.rows() && ids.rows() == logits.rows());
  PRIMUS_CHECK(kId, values.cols() == ids.cols() && values.cols() >= 1 && values.cols() <= kMax);
  PRIMUS_CHECK(kId, draws.absent() || (draws.dtype == DType::kF64 &&
                                       draws.shape == Shape({logits.rows(), 2}) && values.cols() == 1));
  PRIMUS_CHECK(kId, vocab >= values.cols() && vocab <= logits.cols());
}

}  // namespace primus::turbo
