#include "turbo/cross_entropy/cross_entropy.h"

#include "turbo/check.h"

namespace primus::turbo {

void CrossEntropy::check() const {
  PRIMUS_CHECK(kId, logits.dtype == DType::kF32 && logits.shape.rank() == 2 && logits.cols() > 0);
  PRIMUS_CHECK(kId, labels.dtype == DType::kI32 && labels.elements() == logits.shape[0]);
  PRIMUS_CHECK(kId, weights.dtype == DType::kF32 && weights.elements() == logits.shape[0]);
  PRIMUS_CHECK(kId, loss.dtype == DType::kF32 && loss.elements() == logits.shape[0]);
  if (!d_logits.absent()) {
    PRIMUS_CHECK(kId, is_float(d_logits));
    PRIMUS_CHECK(kId, d_logits.shape == logits.shape);
    PRIMUS_CHECK(kId, !logits.data || d_logits.data != logits.data || d_logits.dtype == DType::kF32);
  }
}

}  // namespace primus::turbo
