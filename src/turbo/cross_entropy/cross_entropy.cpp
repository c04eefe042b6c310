#include "turbo/cross_entropy/cross_entropy.h"

namespace primus::turbo {

void CrossEntropy::check() const {
  assert(logits.dtype == DType::kF32 && logits.shape.rank() == 2 && logits.cols() > 0);
  assert(labels.dtype == DType::kI32 && labels.elements() == logits.shape[0]);
  assert(weights.dtype == DType::kF32 && weights.elements() == logits.shape[0]);
  assert(loss.dtype == DType::kF32 && loss.elements() == logits.shape[0]);
  if (!d_logits.absent()) {
    assert(d_logits.dtype == DType::kF32 || d_logits.dtype == DType::kBF16);
    assert(d_logits.shape == logits.shape);
    assert(!logits.data || d_logits.data != logits.data || d_logits.dtype == DType::kF32);
  }
}

}  // namespace primus::turbo
